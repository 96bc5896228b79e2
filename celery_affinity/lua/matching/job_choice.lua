-- job_choice: chooses the best head of several types, by score or by age only. `head_cache` adds up all points but
-- rarity, and keeps the best head of each type.
--
-- Cost: grows with the types that have pending jobs, and with the lanes of types whose best heads are not cached.

local fleets = memo.cache(protocol.MAX_FLEETS) -- key prefix of a fleet -> list of types -> their points for rarity

-- Returns the points for rarity of each of `types`, a list that many invocations share, if they depend on all slots of
-- a type. A change of slots or settings changes `text` (`settings_in_force.read_for_claim`).
local function shared_rarity(types, settings, text)
    local lists = fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MAX_COMPARISONS))
    local rarity = lists.of[types] or memo.keep(lists, types, { of = {} })
    if rarity.text ~= text then
        rarity.text = text
        for nth, slots in ipairs(hash.read(key.capacity, types)) do
            rarity.of[types[nth]] = score.rarity(slots or 1, settings)
        end
    end
    return rarity.of
end

-- Returns the points for rarity of the `nth` type in a choice.
function job_choice.rarity(choice, nth)
    if choice.shared_rarity then
        return choice.shared_rarity[choice.types[nth]]
    end
    local settings, type = choice.settings, choice.types[nth]
    if settings.rarity == "free" then
        return score.rarity(choice.view:free_for(type), settings)
    end
    choice.capacities = choice.capacities or hash.read(key.capacity, choice.types)
    return score.rarity(choice.capacities[nth] or 1, settings)
end

-- Returns the place and the score of the best head in `heads`, all heads of the `nth` type or a part of them. The score
-- can lack the rarity if it is below `least`. Returns nil for heads beyond the budget of the choice.
local function best_head(choice, nth, heads, by_age, least)
    if by_age then
        return head_cache.oldest(heads), 0
    end
    local settings, type = choice.settings, choice.types[nth]
    local name = choice.is_cached and heads == choice.heads[type] and type
    local place, points = head_cache.best(name, heads, settings, choice)
    if place and #choice.types > 1 and points + settings.max_rarity >= least then
        points = points + job_choice.rarity(choice, nth)
    end
    return place, points
end

-- Returns the position of the type with the best head that fits a free slot, and the head's place, or nil.
local function first_type(choice, by_age)
    local types, heads, view, reserve_filter = choice.types, choice.heads, choice.view, choice.kept_back
    local first, first_place
    local best_points = -math.huge
    for nth, type in ipairs(types) do
        local type_heads = heads[type]
        local open = type_heads and view:any_free(type) and type_heads or ""
        if open ~= "" and reserve_filter then
            open = reserve_filter.open(type, type_heads, view)
        end
        if open ~= "" then
            local place, points = best_head(choice, nth, open, by_age, best_points)
            if place and open ~= type_heads then
                place = lanes.place(type_heads, (lanes.head_at(open, place)))
            end
            if place and (points > best_points or (points == best_points
                and head_cache.is_older(type_heads, place, heads[types[first]], first_place))) then
                first, first_place, best_points = nth, place, points
            end
        end
    end
    return first, first_place
end

-- Returns the best job of `choice` that fits a free slot, or nil, and true if it was chosen by age only.
function job_choice.first(choice)
    local types, heads, percentage, by_age = choice.types, choice.heads, choice.settings.priority_percentage, false
    local nth, place, head
    if choice.shared_rarity then
        nth, head = head_cache.first(types, heads, choice.settings, choice.shared_rarity, choice)
    else
        if percentage ~= 100 then -- otherwise claims are not counted
            by_age = score.goes_by_age(tonumber(redis.call("GET", key.claim_number) or 0), percentage)
        end
        nth, place = first_type(choice, by_age)
    end
    if not nth then
        return nil
    end
    local type = types[nth]
    local job = lanes.checked_job(type, heads[type], place, head)
    if not job then
        error("spoiled heads of type " .. type)
    end
    if percentage ~= 100 then
        redis.call("INCR", key.claim_number)
    end
    return job, by_age
end

-- Makes `waiting` (`queue_heads.of`) a choice: a table with the fields types, heads, view, kept_back, and these:
--   settings: as `settings_in_force.read_for_claim` returns them.
--   is_cached: true if `head_cache` may keep the comparison of a type's heads.
--   shared_rarity: type -> points for rarity, if a free slot fits all types and no claim is made by age, or false.
--   capacities: number of slots by position of a type, nil until they are read.
--   bytes: bytes of heads that the choice can still compare, negative if it skips the heads of a type.
function job_choice.begin(waiting)
    local settings, text = settings_in_force.read_for_claim()
    waiting.settings, waiting.is_cached, waiting.bytes = settings, true, protocol.MAX_COMPARED_BYTES
    waiting.shared_rarity = waiting.served and #waiting.types > 1 and waiting.view.fits_all and not waiting.kept_back
        and settings.rarity ~= "free" and settings.priority_percentage == 100
        and shared_rarity(waiting.served, settings, text)
end

-- Returns the best job of tenants below their minimum, or nil if no free slot fits any. Such a claim is made by score,
-- and is not counted.
--   types: the types of `waiting` with such jobs.
function job_choice.below_minimum(waiting, types)
    local heads = waiting.first_heads
    local nth, place = first_type({
        types = types, heads = heads, view = waiting.view, kept_back = waiting.kept_back,
        settings = waiting.settings or settings_in_force.read_for_claim(), bytes = protocol.MAX_COMPARED_BYTES,
    }, false)
    return nth and lanes.checked_job(types[nth], heads[types[nth]], place)
end

-- queue_heads: the pending jobs from which a fill chooses, best first.
--
-- Cost: a few commands per type, once per invocation; then O(log n) per popped job.

local NO_LIMITS = {}

-- Returns MAX_CHOSEN_FROM types of `waiting`, types with on-demand jobs first. One invocation chooses from no more
-- types, since it looks up the free slots of each. Also returns the other types, each followed by a space, and removes
-- their entries from `heads`.
local function limit_types(waiting, heads)
    local chosen, unfilled = {}, {}
    for _, has_demand in ipairs({ true, false }) do
        for _, type in ipairs(waiting) do
            if lanes.has_demand(heads[type]) == has_demand then
                local list = #chosen < protocol.MAX_CHOSEN_FROM and chosen or unfilled
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
--   place: start of its lane's head in the heads of its type, nil if another job is that head.
function queue_heads.find_place(waiting, job)
    local heads = waiting.heads[job.type]
    local place, _, _, id = lanes.place(heads, job.lane)
    job.place = id == job.id and place or nil
    return job.place
end

-- Returns the job of a tenant below its minimum that is claimed before all others, or nil.
local function best_below_minimum(waiting)
    local types, heads = {}, waiting.heads
    for _, type in ipairs(waiting.types) do
        types[#types + 1] = heads[type] and waiting.first_heads[type] and type
    end
    local job = job_choice.below_minimum(waiting, types)
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
    local only = not waiting.settings and #waiting.types == 1 and lanes.only_job(any_type, heads[any_type])
    if not only and not waiting.settings then
        job_choice.begin(waiting)
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
        job, by_age = job_choice.first(waiting)
    end
    if job and call.near and not by_age then
        job = hooks.nearer(waiting, job)
    end
    return job, by_age
end

-- Replaces the heads of `type`: a job was popped, or a hook has moved jobs.
function queue_heads.change(waiting, type, heads)
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
--   has_rules: true if its id has an id suffix, or if tenants have fair shares.
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
        local was_there = redis.call("ZREM", key.lane(type, job.lane), job.id) == 1
        if not was_there and waiting.shares then
            hooks.forget_candidate(job)
        end
        return was_there
    end
    local before = waiting.heads[type]
    local after, next_enqueued, was_there = lanes.pop(job, before)
    queue_heads.change(waiting, type, after)
    if waiting.settings then
        head_cache.popped(type, job.place, job.lane, before, after, next_enqueued, waiting.settings)
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

-- Returns the pending jobs of `types` as candidates for the free slots of `view`, a table for `fill`.
--   left: types that the invocation does not choose from, each followed by a space.
--   limits: type -> its limit, for types that have one; "closed" when the limit is reached.
--   kept_back: the filter of the reserves, or nil.
--   first_heads: heads of tenants below their minimum, as in `minimums.heads`.
--   changed: types whose heads must be written, or false.
--   settings: false until a job must be chosen from several lanes (`job_choice.begin`).
--   shares: true if tenants have fair shares.
--   served: the list of all types, if many invocations share it.
function queue_heads.of(types, view, settings)
    local waiting, heads, word = lanes.heads(types)
    local rules_field, has_shares, unfilled = word, false, ""
    call.shares = "off"
    if word then
        rules_field, has_shares = hooks.read_word(word)
    end
    if not view.left and #waiting > protocol.MAX_CHOSEN_FROM then -- a view of all slots
        waiting, unfilled = limit_types(waiting, heads)
    end
    local limit_of, reserve_filter, first_heads, preferred = NO_LIMITS, nil, nil, nil
    if rules_field then
        waiting, limit_of, reserve_filter, first_heads, preferred =
            hooks.open(waiting, heads, settings, view.is_ahead, rules_field)
        view = reserve_filter and view.of_all and view:of_all() or view -- jobs may wait although any slot is free
        view.weights = preferred and preferred.weights
    end
    local candidates = {
        types = waiting, served = types.is_kept and types, heads = heads, left = unfilled, view = view,
        limits = limit_of, changed = false, settings = false, shares = has_shares,
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
function queue_heads.of_single(job)
    return { types = {}, heads = {}, left = "", limits = NO_LIMITS, changed = false, alone = job }
end
