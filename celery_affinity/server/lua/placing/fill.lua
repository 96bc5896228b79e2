-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot.
-- After it, no pending job and free slot that fit each other exist side by side among `types`, unless it names
-- some of them as `more`: the caller goes on with these (`claim`).
-- One that has expired ends when its turn comes: no tick has seen it yet.
-- Cost: independent of pending jobs (log n) and of workers; grows with `types`, once in a call.
-- @include jobs/claims.lua
-- @include jobs/ends.lua
-- @include placing/filters.lua
-- @include placing/heads.lua
-- @include generated/settings.lua
-- @include placing/free_slots.lua

-- The waiting jobs of some types. Most often that is one, or one lane: what chooses among several is defined when there
-- are several.
local function candidates(types, view, settings)
    local waiting, heads = lanes.heads(types)
    local changed = {} -- types whose heads are to be written
    local choice

    return {
        types = waiting,
        heads = heads,

        -- RETURNS the job that goes first of all those that a free slot fits, or nil.
        best = function()
            local one = next(heads)
            if not one then
                return nil
            end
            local is_alone = #waiting == 1 and filters.none and string.find(heads[one], "^%l+%.%d+ %d+ %S+$")
            if is_alone and not choice then
                return view.any_free(one) and lanes.job(one, heads[one], 1)
            end
            if not choice then
-- @deferred placing/which_job.lua
                choice = choice_among(waiting, heads, view, settings)
            end
            return choice.first()
        end,

        take = function(job)
            local type = job.type
            local before = heads[type]
            local after = lanes.take(job, before)
            heads[type], changed[type] = after ~= "" and after or nil, true
            if choice then
                choice.taken(job, #after - #before)
            end
        end,

        write = function()
            for type in pairs(changed) do
                lanes.write(type, heads[type] or "")
            end
            if choice then
                choice.write()
            end
        end,
    }
end

-- `waiting`: jobs, as `candidates` has them. `caller`: the worker whose jobs go into the reply instead of its inbox; ""
-- for none. `view`: of the slots to fill. `fresh`: job id -> its message, of a job that was just written.
-- RETURNS {more, payload, ...}, and each job that went into it, with its fencing number. more: types of which jobs
-- wait that nobody has looked at any more, with blanks; "" for none.
local function fill_from(waiting, caller, view, fresh)
    local reply, inline = { "" }, {}
    local bytes = 0
    for moves = 1, protocol.MOST_MOVES do
        local job = view.left ~= 0 and waiting.best()
        if not job then
            break
        end
        local id, worker = job.id, view.best(job.type)
        waiting.take(job)
        local fence, deliveries, expires, has_row = claims.grant(id, worker, view)
        if fence then
            if not has_row then
                -- What its head says of it is enough for it to run.
                redis.call("HSET", key.job(id), "type", job.type, "lane", job.lane, "enqueued", job.enqueued,
                    "deliveries", 0, "task", "", "name", "")
                redis.call("LPUSH", key.spoiled, "job " .. id .. ", of which only its place in a lane was left")
                redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)
            end
            local message = fresh and fresh[id]
            local payload = claims.payload(id, fence, job.type, deliveries, job.enqueued, expires, message)
            job.fence, bytes = fence, bytes + #payload
            if worker == caller then
                reply[#reply + 1], inline[#inline + 1] = payload, job
            else
                redis.call("LPUSH", key.inbox(worker), payload)
            end
        else
            ends.note(id, "expired")
        end
        if moves == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
            for _, type in ipairs(waiting.types) do
                reply[1] = waiting.heads[type] and reply[1] .. type .. " " or reply[1]
            end
            break
        end
    end
    waiting.write()
    view.settle()
    return reply, inline
end

-- RETURNS what `fill_from` does, of the waiting jobs of `types`.
local function fill(types, caller, settings, view)
    return fill_from(candidates(types, view, settings), caller, view)
end
