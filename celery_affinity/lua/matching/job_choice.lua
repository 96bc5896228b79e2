-- job_choice: chooses the best head of several types, by score or by age only.
-- The file is long because all functions share one table, the state of a choice in one invocation.
--
-- Cost: grows with the types that have pending jobs, and with the lanes of types whose best heads are not cached.

-- Returns true if the next job is chosen by age only.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.claim_number) or 0), settings.priority_percentage)
end

-- Counts a claim with a choice. Does not write if no claims are made by age.
local function count_claim(settings)
    if settings.priority_percentage ~= 100 then
        redis.call("INCR", key.claim_number)
    end
end

-- Returns the rarity points of the `nth` type in a choice.
function job_choice.rarity(choice, nth)
    local settings, type = choice.settings, choice.types[nth]
    if settings.rarity == "free" then
        return score.rarity(choice.view:free_for(type), settings)
    end
    choice.capacities = choice.capacities or lanes.fields(key.capacity, choice.types)
    return score.rarity(choice.capacities[nth] or 1, settings)
end

-- Returns the place and the score of the best head in `heads`, the heads of the `nth` type. The score can lack the
-- rarity if it is below `least`.
local function best_head(choice, nth, heads, by_age, least)
    if by_age then
        choice.oldest[nth] = choice.oldest[nth] or head_cache.oldest(heads)
        return choice.oldest[nth], 0
    end
    local settings = choice.settings
    local place, points = choice.places[nth], choice.points[nth]
    if not place then
        place, points = choice.first_head(choice.types[nth], heads, settings)
        choice.places[nth], choice.points[nth] = place, points
    end
    if #choice.types > 1 and points + settings.most_rarity >= least then
        points = points + job_choice.rarity(choice, nth)
    end
    return place, points
end

-- Does the same as `best_head` for the best head in `open`, a part of the type's heads.
local function best_open(choice, nth, open, by_age)
    if open == "" then
        return nil
    end
    local place, points
    if by_age then
        place, points = head_cache.oldest(open), 0
    else
        place, points = head_cache.first_of_some(open, choice.settings)
        points = points + job_choice.rarity(choice, nth)
    end
    return lanes.place(choice.heads[choice.types[nth]], (lanes.at(open, place))), points
end

-- Returns the position of the type with the best head that fits a free slot, and the head's place, or nil.
local function first_type(choice, by_age)
    local types, heads, view, reserve_filter = choice.types, choice.heads, choice.view, choice.kept_back
    local first, first_place
    local best_points = -math.huge
    for nth, type in ipairs(types) do
        local type_heads = heads[type]
        if type_heads and view:any_free(type) then
            local open = reserve_filter and reserve_filter.open(type, type_heads, view) or type_heads
            local place, points
            if open == type_heads then
                place, points = best_head(choice, nth, type_heads, by_age, best_points)
            else
                place, points = best_open(choice, nth, open, by_age)
            end
            if place and (points > best_points or (points == best_points
                and head_cache.is_older(type_heads, place, heads[types[first]], first_place))) then
                first, first_place, best_points = nth, place, points
            end
        end
    end
    return first, first_place
end

-- Returns the best job that fits a free slot, or nil, and true if it was chosen by age only.
local function first(choice)
    local by_age = goes_by_age(choice.settings)
    local nth, place = first_type(choice, by_age)
    if not nth then
        return nil
    end
    local type = choice.types[nth]
    local heads = choice.heads[type]
    local job = lanes.checked_job(type, heads, place, nth)
    if not job then
        error("spoiled heads of type " .. type)
    end
    count_claim(choice.settings)
    return job, by_age
end

-- Updates the choice after `job` was popped from the heads of its type.
--   before: the heads before.
--   next_enqueued: enqueue time of the next job of its lane, or nil.
local function popped(choice, job, before, next_enqueued)
    local after = choice.heads[job.type] or ""
    head_cache.popped(job.type, job.place, job.lane, before, after, next_enqueued, choice.settings)
    choice.places[job.nth], choice.oldest[job.nth] = nil, nil
end

-- Updates the choice after the heads of `type` have changed.
local function changed(choice, type)
    for nth, other in ipairs(choice.types) do
        if other == type then
            choice.places[nth], choice.oldest[nth] = nil, nil
        end
    end
end

-- Returns a choice from the jobs of `types`, a table with the functions `first`, `popped` and `changed`.
--   heads: type -> its heads; the caller changes these and then calls `popped` or `changed`.
--   reserve_filter: result of `reserves.among`, which depends on the free slots; nil without reserves.
--   served: the list of a worker's types, if later invocations use the same table: `best_types` then makes the
--     choice, if the settings permit it. Otherwise false or nil.
-- Time is constant in a server function, and all lanes of a type have one rarity. The best head of a type therefore
-- stays the best until the heads of the type change. Fields by position of a type:
--   places, points: place of this head, and its points without rarity.
--   oldest: place of the oldest head.
--   capacities: number of slots, false until they are read.
-- Tables are created with nils to preallocate space for as many values.
function job_choice.among(types, heads, view, reserve_filter, served)
    local settings, text = settings_in_force.for_a_claim()
    if served and #types > 1 and view.fits_all and not reserve_filter and best_types.may_choose(settings) then
        return best_types.choice(served, heads, settings, text)
    end
    return {
        types = types, heads = heads, view = view, settings = settings, kept_back = reserve_filter,
        places = { nil, nil, nil, nil }, points = { nil, nil, nil, nil }, oldest = {}, capacities = false,
        first = first, popped = popped, changed = changed, first_head = head_cache.first,
    }
end

local function first_head(_, heads, settings)
    return head_cache.first_of_some(heads, settings)
end

-- Returns the best job of tenants below their minimum, or nil if no free slot fits any. Such a claim is made by score,
-- and is not counted.
--   heads: type -> its minimum heads.
function job_choice.below_minimum(types, heads, view, reserve_filter)
    local choice = job_choice.among(types, heads, view, reserve_filter)
    choice.first_head = first_head
    local nth, place = first_type(choice, false)
    return nth and lanes.job(types[nth], heads[types[nth]], place)
end

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
    local any_type = next(heads)
    if not any_type then
        return nil
    end
    local only = not waiting.choice and #waiting.types == 1 and lanes.only_job(any_type, heads[any_type])
    if not only and not waiting.choice then
        waiting.choice = job_choice.among(waiting.types, heads, view, reserve_filter, waiting.served)
    end
    local job = waiting.first_heads and best_below_minimum(waiting)
    if job then
        return job, true
    end
    local by_age = false
    if only then
        local is_open = view:any_free(any_type)
            and not (reserve_filter and reserve_filter.open(any_type, heads[any_type], view) == "")
        job = is_open and only
    else
        job, by_age = waiting.choice:first()
    end
    if job and call.near and not by_age then
        job = hooks.nearer(waiting, job)
    end
    return job, by_age
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
