-- queue_heads: the pending jobs among which a fill chooses, the best one first.
-- Cost: some commands for each type, once in a call; then each job that is popped costs O(log n).

local NO_LIMITS = {}

-- RETURNS MOST_CHOSEN_FROM of the types in `waiting`, those with jobs on demand first: a call chooses among no more,
-- since it looks up the free slots of each. A second value names the other types, each with a blank behind it; their
-- entries in `heads` are removed.
local function some_of(waiting, heads)
    local some, left = {}, {}
    for _, has_demand in ipairs({ true, false }) do
        for _, type in ipairs(waiting) do
            if lanes.has_demand(heads[type]) == has_demand then
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

-- Writes the heads of the types whose jobs were popped.
function queue_heads.write_heads(waiting)
    if waiting.changed then
        for type in pairs(waiting.changed) do
            lanes.write(type, waiting.heads[type] or "")
        end
        waiting.changed = false
    end
end

-- `job` was found among the heads of first lanes or of near lanes. Sets its `place`: where the head of its lane begins
-- in the heads of its type, nil if another job is that head; and `nth`: the position of its type. RETURNS the place.
function queue_heads.find_place(waiting, job)
    local heads = waiting.heads[job.type]
    local place = lanes.place(heads, job.lane)
    job.place = place and select(3, lanes.at(heads, place)) == job.id and place or nil
    for nth, type in ipairs(waiting.types) do
        job.nth = type == job.type and nth or job.nth
    end
    return job.place
end

-- RETURNS the job of a tenant below its minimum that goes before all others, or nil.
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

-- RETURNS the job that goes first of those that a free slot fits, nil for none; and whether the turns of tenants
-- (`shares`) do not count for the job: its tenant is below its minimum, or the job goes by age alone. If all jobs are
-- of one lane, as mostly, nothing is compared.
function queue_heads.best(waiting)
    if waiting.alone ~= nil then
        return waiting.alone or nil
    end
    local heads, view, kept_back = waiting.heads, waiting.view, waiting.kept_back
    local one = next(heads)
    if not one then
        return nil
    end
    local only = not waiting.choice and #waiting.types == 1 and lanes.only_job(one, heads[one])
    if not only and not waiting.choice then
        waiting.choice = job_choice.among(waiting.types, heads, view, kept_back, waiting.served)
    end
    local job = waiting.first_heads and best_below_minimum(waiting)
    if job then
        return job, true
    end
    local goes_by_age = false
    if only then
        local is_open = view:any_free(one) and not (kept_back and kept_back.open(one, heads[one], view) == "")
        job = is_open and only
    else
        job, goes_by_age = waiting.choice:first()
    end
    if job and call.near and not goes_by_age then
        job = hooks.nearer(waiting, job)
    end
    return job, goes_by_age
end

-- The first jobs of `type` are these `heads` now.
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
local function waits_elsewhere(job)
    local state, type, lane = unpack(redis.call("HMGET", key.job(job.id), "state", "type", "lane"))
    local waits = state == "pending" and type == job.type and lane == job.lane
        or not state and redis.call("EXISTS", key.message(job.id)) == 1
    if not waits then
        corrupt.record("head " .. job.id .. " of type " .. job.type .. ", which does not wait")
    end
    return waits
end

-- Removes `job` from its lane, which is about to be claimed. `has_rules`: whether its id has a mark. RETURNS whether it
-- waited: what is none of the heads may not be in the lane, since somebody deleted it.
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
    return was_there or waits_elsewhere(job)
end

-- `job` was claimed: a limit of its type, or a reserve for its class, counts it.
function queue_heads.count(waiting, job)
    local kept_back = waiting.kept_back
    if not (waiting.limits[job.type] or (kept_back and kept_back.covers(job.type, job.lane))) then
        return
    end
    queue_heads.write_heads(waiting)
    if hooks.count(job.type, job.id, job.lane) then
        waiting.heads[job.type], waiting.limits[job.type] = nil, "closed"
    end
    if kept_back then
        kept_back.counted(job.type)
    end
end

-- Reads the heads of jobs that go before all others, if a rule has changed them since.
function queue_heads.read_first_heads(waiting)
    waiting.first_heads = hooks.first_heads(waiting.types) or waiting.first_heads
end

-- A rule has moved jobs of `type`, of which `heads` are the first ones now.
function queue_heads.moved(waiting, type, heads)
    change(waiting, type, heads)
    if waiting.choice then
        waiting.choice:changed(type)
    end
end

-- RETURNS the pending jobs of `types`, among which `view` says for which a slot is free: a table with what `fill` uses.
-- `left`: types that the call does not choose from, each with a blank behind it. `limits`: of types that have one;
-- "closed" when as many of their jobs run. `kept_back`: what reserves keep back; nil for nothing. `first_heads`: those
-- of tenants below their minimum, as `minimums.heads` has them. `changed`: types whose heads are to be written; false
-- for none. `choice`: chooses among several lanes, once there are several; else false. `served`: the list of all types,
-- if it is kept for many calls.
function queue_heads.of(types, view, settings)
    local waiting, heads, word = lanes.heads(types)
    local left = ""
    if not view.left and #waiting > protocol.MOST_CHOSEN_FROM then -- a view of all slots
        waiting, left = some_of(waiting, heads)
    end
    local limit_of, kept_back, first_heads, preferred = NO_LIMITS, nil, nil, nil
    if word then
        preferred = hooks.preferred(word)
        if not preferred then
            waiting, limit_of, kept_back, first_heads, preferred = hooks.open(waiting, heads, settings, view.is_ahead)
        end
        view = kept_back and view.of_all and view:of_all() or view -- jobs may wait beside any free slot
        view.weights = preferred and preferred.weights
    end
    local found = {
        types = waiting, served = types.is_kept and types, heads = heads, left = left, view = view, limits = limit_of,
        changed = false, choice = false,
    }
    if kept_back then
        found.kept_back = kept_back
    end
    if first_heads then
        found.first_heads = first_heads
    end
    call.near = preferred and not kept_back and hooks.near(waiting, view, preferred) or false
    return found
end

-- RETURNS what `queue_heads.of` does, of a job that was published alone: it may never be in a lane. `alone`: the job;
-- false once it is popped.
function queue_heads.only(job)
    return { types = {}, heads = {}, left = "", limits = NO_LIMITS, changed = false, alone = job }
end
