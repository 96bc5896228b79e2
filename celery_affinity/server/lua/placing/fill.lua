-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot. After a fill,
-- no pending job of `types` and free slot that fit each other exist side by side, unless the reply names some of the
-- types as `more`: the caller passes these to `claim`. A job that has expired, and that no tick has seen yet, ends when
-- it would be claimed.
-- Cost: O(log n) in pending jobs, independent of workers; grows with `types`, once in a call.
-- A reason for the length: jobs and slots are chosen in other parts; the move itself is one subject.
-- @include jobs/claims.lua
-- @include jobs/ends.lua
-- @include jobs/figures.lua
-- @include placing/heads.lua
-- @include generated/settings.lua
-- @include placing/free_slots.lua

-- RETURNS those of the types `waiting` among which one call chooses, since of each the free slots are looked up: those
-- with jobs on demand first; and the others, each with a blank behind it. Removes the `heads` of the others.
local function some_of(waiting, heads)
    local some, left = {}, {}
    for _, has_demand in ipairs({ true, false }) do
        for _, type in ipairs(waiting) do
            if (string.find(heads[type], "demand.", 1, true) ~= nil) == has_demand then
                local list = #some < protocol.MOST_CHOSEN_FROM and some or left
                list[#list + 1] = type
            end
        end
    end
    for _, type in ipairs(left) do
        heads[type] = nil
    end
    return some, table.concat(left, " ") .. " "
end

-- RETURNS the pending jobs of `types`, among which `view` says for which a slot is free. Mostly these are jobs of one
-- lane: what chooses among several lanes is defined when there are several. `left`: types that the call does not choose
-- from, each with a blank behind it.
local function candidates(types, view, settings)
    local waiting, heads, has_type_rules = lanes.heads(types)
    local left = ""
    if not view.left and #waiting > protocol.MOST_CHOSEN_FROM then -- a view of all slots
        waiting, left = some_of(waiting, heads)
    end
    local limits = {} -- of types that have one; "closed" when as many of their jobs run
    local kept_back -- what reserves keep back; nil for nothing
    if has_type_rules then
        waiting, limits, kept_back = of_type("open", waiting, heads, settings, view.is_ahead)
        view = kept_back and view.of_all and view.of_all() or view -- jobs may wait beside any free slot
    end
    local changed = {} -- types whose heads are to be written
    local choice

    local function write_heads()
        for type in pairs(changed) do
            lanes.write(type, heads[type] or "")
        end
        changed = {}
    end

    return {
        types = waiting,
        heads = heads,
        left = left,

        -- RETURNS the job that goes first of those that a free slot fits, or nil.
        best = function()
            local one = next(heads)
            if not one then
                return nil
            end
            local has_one_lane = #waiting == 1 and string.find(heads[one], "^%l+%.%d+ %d+ %S+$")
            if has_one_lane and not choice then
                local is_open = view.any_free(one) and not (kept_back and kept_back.open(one, heads[one], view) == "")
                return is_open and lanes.job(one, heads[one], 1)
            end
            if not choice then
-- @deferred placing/which_job.lua
                choice = choice_among(waiting, heads, view, settings, kept_back)
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

        write_heads = write_heads,
        view = view,
        limits = limits,

        -- `job` was claimed: a limit of its type, or a reserve for its class, counts it.
        count = function(job)
            if not (limits[job.type] or (kept_back and kept_back.covers(job.type, job.lane))) then
                return
            end
            write_heads()
            if of_type("hold", job.type, job.id, job.lane) then
                heads[job.type], limits[job.type] = nil, "closed"
            end
            if kept_back then
                kept_back.counted(job.type)
            end
        end,

        -- Reads the heads of the types that a rule has moved since.
        read_again = function()
            for nth, type in ipairs(waiting) do
                if moved[type] ~= nil and limits[type] ~= "closed" then
                    heads[type] = redis.call("HGET", key.heads, type) or nil
                    if choice then
                        choice.changed(nth)
                    end
                end
            end
        end,

        write = function()
            write_heads()
            if choice then
                choice.write()
            end
        end,
    }
end

-- Does what the function `does` of keyed.lua does with a job of `waiting` that has rules. RETURNS what that returns.
local function with_its_rules(waiting, does, ...)
    local are_written = false
    before_heads_change = function()
        if not are_written then
            waiting.write_heads()
            are_written = true
        end
    end
    local result = ruled(does, ...)
    before_heads_change = false
    if are_written then -- mostly a claim changes nothing else
        waiting.read_again()
    end
    return result
end

-- Fills slots. `waiting`: jobs, as `candidates` returns them. `caller`: the worker whose jobs go into the reply instead
-- of its inbox; "" for none. `view`: of the slots to fill. `fresh`: job id -> message, of jobs that were just written,
-- and then no other job is moved: whoever publishes may have no right to read messages.
-- RETURNS {more, payload, ...}, and the jobs of these payloads with their fencing numbers. more: types, separated by
-- blanks, whose pending jobs this call did not get to, because a call moves MOST_MOVES jobs at most, chooses from
-- MOST_CHOSEN_FROM types, or moves only jobs that are fresh; "" for none.
local function fill_from(waiting, caller, view, fresh)
    local reply, inline = { waiting.left }, {}
    local bytes = 0

    local function leave_the_others()
        for _, type in ipairs(waiting.types) do
            reply[1] = waiting.heads[type] and reply[1] .. type .. " " or reply[1]
        end
    end

    for moves = 1, protocol.MOST_MOVES do
        local job = view.left ~= 0 and waiting.best()
        if not job then
            break
        end
        local id, worker, is_ruled = job.id, view.best(job.type), has_rules(job.id)
        local has_limit = waiting.limits and waiting.limits[job.type]
        if view.is_ahead and (is_ruled or has_limit) then
            break -- it would hold its key, or count, while it waits for a slot
        end
        local may_start = not is_ruled or with_its_rules(waiting, "may_start", id)
        if may_start and fresh and not fresh[id] then
            leave_the_others()
            break
        end
        local run, run_expires -- of a batch
        local fence, deliveries, expires, has_row, is_moved
        if may_start then
            waiting.pop(job)
            if marks.of(id) == protocol.BATCH then
-- @deferred jobs/primary.lua
                run, run_expires = primary.choose(id, job.type)
            end
        end
        if may_start and (run or marks.of(id) ~= protocol.BATCH) then
            fence, deliveries, expires, has_row, is_moved = claims.grant(id, worker, view)
        end
        if is_ruled and may_start then
            with_its_rules(waiting, fence and "hold" or "leave", id, job.type, job.lane, fence)
        end
        if fence then
            if not has_row then
                -- Somebody deleted the job's row. What its head says is enough to run it; of a batch, with its calls.
                local known_of = run or id
                local task, name, rules = unpack(redis.call("HMGET", key.job(known_of), "task", "name", "rules"))
                redis.call("HSET", key.job(id), "type", job.type, "lane", job.lane, "enqueued", job.enqueued,
                    "deliveries", 0, "task", task or "", "name", name or "", rules and "rules" or "task", rules or "")
                redis.call("LPUSH", key.spoiled, "job " .. id .. ", of which only its place in a lane was left")
                redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)
            end
            local message = fresh and fresh[id]
            local payload = claims.payload(id, fence, job.type, deliveries, job.enqueued, run_expires or expires,
                message, run, is_moved and job.lane)
            job.fence, bytes = fence, bytes + #payload
            local mode = string.sub(job.lane, 1, 6) -- "queued" or "demand"
            figures.count(job.type, mode, clock.now_us - (tonumber(job.enqueued) or clock.now_us))
            if waiting.count then
                waiting.count(job)
            end
            if worker == caller then
                reply[#reply + 1], inline[#inline + 1] = payload, job
            else
                redis.call("LPUSH", key.inbox(worker), payload)
            end
        elseif may_start and marks.of(id) ~= protocol.BATCH then
            ends.record(id, "expired")
        end
        if moves == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
            leave_the_others()
            break
        end
    end
    waiting.write()
    view.write()
    return reply, inline
end

-- Fills the slots of `view` with pending jobs of `types`, and of those that a rule let go on. RETURNS what `fill_from`
-- does, and the view of the slots that were filled: reserves need that of all slots.
local function fill(types, caller, settings, view)
    local left = ""
    if moved then
        types, left = with_rules.and_gained(types)
    end
    local waiting = candidates(types, view, settings)
    local reply, inline = fill_from(waiting, caller, waiting.view)
    reply[1] = reply[1] .. left
    return reply, inline, waiting.view
end
