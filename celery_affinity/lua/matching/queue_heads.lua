-- queue_heads: the pending jobs from which a fill chooses, best first.
--
-- Cost: a few commands per type, once per invocation; then O(log n) per popped job.

local NO_LIMITS = {}

-- Returns MOST_CHOSEN_FROM types of `waiting`, types with on-demand jobs first. One invocation chooses from no more
-- types, since it looks up the free slots of each. Also returns the other types, each followed by a space, and removes
-- their entries from `heads`.
local function limit_types(waiting, heads)
    local chosen, unfilled = {}, {}
    for _, has_demand in ipairs({ true, false }) do
        for _, type in ipairs(waiting) do
            if lanes.has_demand(heads[type]) == has_demand then
                local list = #chosen < protocol.MOST_CHOSEN_FROM and chosen or unfilled
                list[#list + 1] = type
            end
        end
    end
    for _, type in ipairs(unfilled) do
        heads[type] = nil
    end
    return chosen, table.concat(unfilled, " ") .. " "
end

-- Writes the heads of the types whose jobs were popped.
function queue_heads.write_heads(waiting)
    if waiting.changed then
        for type in pairs(waiting.changed) do
            lanes.write(type, waiting.heads[type] or "")
        end
        waiting.changed = false
    end
end

-- Completes a `job` from the heads of minimum lanes or hint lanes, and returns its place.
--   place: start of the head of its lane in the heads of its type, nil if another job is that head.
--   nth: position of its type.
function queue_heads.find_place(waiting, job)
    local heads = waiting.heads[job.type]
    local place = lanes.place(heads, job.lane)
    job.place = place and select(3, lanes.at(heads, place)) == job.id and place or nil
    for nth, type in ipairs(waiting.types) do
        job.nth = type == job.type and nth or job.nth
    end
    return job.place
end

-- Returns the job of a tenant below its minimum that is claimed before all others, or nil.
local function best_below_minimum(waiting)
    local types, heads = {}, waiting.heads
    for _, type in ipairs(waiting.types) do
        types[#types + 1] = heads[type] and waiting.first_heads[type] and type
    end
    local job = job_choice.below_minimum(types, waiting.first_heads, waiting.view, waiting.kept_back)
    if not job then
        return nil
    end
    if not queue_heads.find_place(waiting, job) and not hooks.waits_first(job.id, job.type, job.lane) then
        queue_heads.read_first_heads(waiting)
        return nil
    end
    return job
end

-- Returns the best job that fits a free slot, or nil. Also returns true if start tags (`fair_share`) do not apply to
-- it: its tenant is below its minimum, or it was chosen by age only. If all jobs are in one lane, the usual case,
-- nothing is compared.
function queue_heads.best(waiting)
    if waiting.alone ~= nil then
        return waiting.alone or nil
    end
    local heads, view, reserve_filter = waiting.heads, waiting.view, waiting.kept_back
    local first_type = next(heads)
    if not first_type then
        return nil
    end
    local only = not waiting.choice and #waiting.types == 1 and lanes.only_job(first_type, heads[first_type])
    if not only and not waiting.choice then
        waiting.choice = job_choice.among(waiting.types, heads, view, reserve_filter, waiting.served)
    end
    local job = waiting.first_heads and best_below_minimum(waiting)
    if job then
        return job, true
    end
    local goes_by_age = false
    if only then
        local is_open = view:any_free(first_type)
            and not (reserve_filter and reserve_filter.open(first_type, heads[first_type], view) == "")
        job = is_open and only
    else
        job, goes_by_age = waiting.choice:first()
    end
    if job and call.near and not goes_by_age then
        job = hooks.nearer(waiting, job)
    end
    return job, goes_by_age
end

-- Replaces the heads of `type`.
local function change(waiting, type, heads)
    waiting.heads[type] = heads ~= "" and heads or nil
    if waiting.changed then
        waiting.changed[type] = true
    else
        waiting.changed = { [type] = true }
    end
end

-- Returns true if `job`, a head that is missing from its lane, is waiting: then another client deleted the lane.
-- Otherwise another client overwrote the heads.
local function is_waiting_job(job)
    local state, type, lane = unpack(redis.call("HMGET", key.job(job.id), "state", "type", "lane"))
    local is_waiting = state == "pending" and type == job.type and lane == job.lane
        or not state and redis.call("EXISTS", key.message(job.id)) == 1
    if not is_waiting then
        corrupt.record("head " .. job.id .. " of type " .. job.type .. ", which does not wait")
    end
    return is_waiting
end

-- Removes `job` from its lane before it is claimed. Returns true if it waited: a job that is not a head may be missing
-- from the lane, if another client deleted it.
--   has_rules: true if its id has an id suffix.
function queue_heads.pop(waiting, job, has_rules)
    if waiting.alone then
        waiting.alone = false
        return true
    end
    local type = job.type
    if has_rules then
        hooks.leaves_lane(job.id, type, job.lane, job)
    end
    if not job.place then
        return redis.call("ZREM", key.lane(type, job.lane), job.id) == 1
    end
    local before = waiting.heads[type]
    local after, next_enqueued, was_there = lanes.pop(job, before)
    change(waiting, type, after)
    if waiting.choice then
        waiting.choice:popped(job, before, next_enqueued)
    end
    return was_there or is_waiting_job(job)
end

-- Counts the claimed `job` for the limit of its type and for the reserve of its class.
function queue_heads.count(waiting, job)
    local reserve_filter = waiting.kept_back
    if not (waiting.limits[job.type] or (reserve_filter and reserve_filter.covers(job.type, job.lane))) then
        return
    end
    queue_heads.write_heads(waiting)
    if hooks.count(job.type, job.id, job.lane) then
        waiting.heads[job.type], waiting.limits[job.type] = nil, "closed"
    end
    if reserve_filter then
        reserve_filter.counted(job.type)
    end
end

-- Reads the minimum heads again if a hook has changed them.
function queue_heads.read_first_heads(waiting)
    waiting.first_heads = hooks.first_heads(waiting.types) or waiting.first_heads
end

-- Replaces the heads of `type` after a hook has moved jobs.
function queue_heads.moved(waiting, type, heads)
    change(waiting, type, heads)
    if waiting.choice then
        waiting.choice:changed(type)
    end
end

-- Returns the pending jobs of `types` as candidates for the free slots of `view`, a table for `fill`.
--   left: types that the invocation does not choose from, each followed by a space.
--   limits: type -> its limit, for types that have one; "closed" when the limit is reached.
--   kept_back: the filter of the reserves, or nil.
--   first_heads: heads of tenants below their minimum, as in `minimums.heads`.
--   changed: types whose heads must be written, or false.
--   choice: chooses from several lanes, false until needed.
--   served: the list of all types, if many invocations share it.
function queue_heads.of(types, view, settings)
    local waiting, heads, rules_field = lanes.heads(types)
    local unfilled = ""
    if not view.left and #waiting > protocol.MOST_CHOSEN_FROM then -- a view of all slots
        waiting, unfilled = limit_types(waiting, heads)
    end
    local limit_of, reserve_filter, first_heads, preferred = NO_LIMITS, nil, nil, nil
    if rules_field then
        preferred = hooks.preferred(rules_field)
        if not preferred then
            waiting, limit_of, reserve_filter, first_heads, preferred =
                hooks.open(waiting, heads, settings, view.is_ahead)
        end
        view = reserve_filter and view.of_all and view:of_all() or view -- jobs may wait although any slot is free
        view.weights = preferred and preferred.weights
    end
    local candidates = {
        types = waiting, served = types.is_kept and types, heads = heads, left = unfilled, view = view,
        limits = limit_of, changed = false, choice = false,
    }
    if reserve_filter then
        candidates.kept_back = reserve_filter
    end
    if first_heads then
        candidates.first_heads = first_heads
    end
    call.near = preferred and not reserve_filter and hooks.near(waiting, view, preferred) or false
    return candidates
end

-- Returns the same as `queue_heads.of` for a single published job, which then never enters a lane.
--   alone: the job, or false once it is popped.
function queue_heads.only(job)
    return { types = {}, heads = {}, left = "", limits = NO_LIMITS, changed = false, alone = job }
end
