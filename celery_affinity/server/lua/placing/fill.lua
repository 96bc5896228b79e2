-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot. After a fill,
-- no pending job of `types` and free slot that fit each other exist side by side, unless the reply names some of the
-- types as `more`: the caller passes these to `claim`. A job that has expired, and that no tick has seen yet, ends when
-- it would be claimed.
-- Cost: O(log n) in pending jobs, independent of workers; grows with `types`, once in a call.
-- A reason for the length: jobs and slots are chosen in other parts; the move itself is one subject.
-- @include jobs/claims.lua
-- @include jobs/ends.lua
-- @include placing/filters.lua
-- @include placing/heads.lua
-- @include generated/settings.lua
-- @include placing/free_slots.lua

-- RETURNS the pending jobs of `types`, among which `view` says for which a slot is free. Mostly these are jobs of one
-- lane: what chooses among several lanes is defined when there are several.
local function candidates(types, view, settings)
    local waiting, heads = lanes.heads(types)
    local changed = {} -- types whose heads are to be written
    local choice

    return {
        types = waiting,
        heads = heads,

        -- RETURNS the job that goes first of those that a free slot fits, or nil.
        best = function()
            local one = next(heads)
            if not one then
                return nil
            end
            local has_one_lane = #waiting == 1 and filters.none and string.find(heads[one], "^%l+%.%d+ %d+ %S+$")
            if has_one_lane and not choice then
                return view.any_free(one) and lanes.job(one, heads[one], 1)
            end
            if not choice then
-- @deferred placing/which_job.lua
                choice = choice_among(waiting, heads, view, settings)
            end
            return choice.first()
        end,

        pop = function(job)
            local type = job.type
            local before = heads[type]
            local after = lanes.pop(job, before)
            heads[type], changed[type] = after ~= "" and after or nil, true
            if choice then
                choice.popped(job, #after - #before)
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

-- Fills slots. `waiting`: jobs, as `candidates` returns them. `caller`: the worker whose jobs go into the reply instead
-- of its inbox; "" for none. `view`: of the slots to fill. `fresh`: job id -> message, of jobs that were just written.
-- RETURNS {more, payload, ...}, and the jobs of these payloads with their fencing numbers. more: types, separated by
-- blanks, whose pending jobs this call did not get to, because a call moves MOST_MOVES jobs at most; "" for none.
local function fill_from(waiting, caller, view, fresh)
    local reply, inline = { "" }, {}
    local bytes = 0
    for moves = 1, protocol.MOST_MOVES do
        local job = view.left ~= 0 and waiting.best()
        if not job then
            break
        end
        local id, worker = job.id, view.best(job.type)
        waiting.pop(job)
        local fence, deliveries, expires, has_row = claims.grant(id, worker, view)
        if fence then
            if not has_row then
                -- Somebody deleted the job's row. What its head says is enough to run it.
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
            ends.record(id, "expired")
        end
        if moves == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
            for _, type in ipairs(waiting.types) do
                reply[1] = waiting.heads[type] and reply[1] .. type .. " " or reply[1]
            end
            break
        end
    end
    waiting.write()
    view.write()
    return reply, inline
end

-- Fills the slots of `view` with pending jobs of `types`. RETURNS what `fill_from` does.
local function fill(types, caller, settings, view)
    return fill_from(candidates(types, view, settings), caller, view)
end
