-- head_cache: finds the best head of a type. Heads whose scores grow at one rate keep their order. There are two such
-- groups: "slow" heads (queued jobs, and on-demand jobs past the age cap) and "fast" heads (other on-demand jobs). The
-- result of comparing all heads is therefore cached. It is valid for the same heads (one string) and settings, until a
-- fast head reaches the age cap or the clock is set back.
--
-- Cost: comparing 22 heads costs about 20 times as much as using the cached comparison.
local NONE, NEVER = -1 / 0, -1

local fleets = memo.cache(protocol.MOST_FLEETS) -- key prefix of a fleet -> type -> the comparison of its heads

-- Returns true if a job gains a whole number of points per µs; rounding then never changes an order.
local function grows_evenly(settings)
    return settings.age_weight % 1 == 0 and settings.on_demand_age_weight % 1 == 0
end

-- Returns the points that this age gives to a job in `lane`, and true if it is fast. The constant points of a lane are
-- computed once, and cached in `settings`.
local function points_of(lane, age_us, settings)
    local standing, on_demand = settings.standings.of[lane], lanes.is_on_demand(lane)
    if not standing then
        standing = memo.keep(settings.standings, lane, score.standing(lanes.priority(lane), on_demand, settings))
    end
    return standing + score.patience(on_demand, age_us, settings), on_demand and age_us < settings.on_demand_age_cap_us
end

-- Returns the points without rarity for a job in `lane` enqueued at `enqueued` (µs, a string).
function head_cache.points(lane, enqueued, settings)
    return (points_of(lane, call.now_us - tonumber(enqueued), settings))
end

-- Returns true if the head at `place` has an older job than another head. Ties go to the smaller id.
function head_cache.is_older(heads, place, other_heads, other_place)
    local _, enqueued, id = lanes.at(heads, place)
    local _, other_enqueued, other_id = lanes.at(other_heads, other_place)
    return score.is_older(tonumber(enqueued), id, tonumber(other_enqueued), other_id)
end

-- Returns the place of the oldest job in `heads`.
function head_cache.oldest(heads)
    local oldest, first_us, first_id
    for place, enqueued, id in string.gmatch(heads, "()%l+%.%d+ (%d+) (%S+)") do
        local enqueued_us = tonumber(enqueued)
        if not oldest or score.is_older(enqueued_us, id, first_us, first_id) then
            oldest, first_us, first_id = place, enqueued_us, id
        end
    end
    return oldest
end

-- Compares all `heads` and returns the comparison.
--   made_us, until_us: the period in which it is valid (µs).
--   slow, fast: points of the best slow and the best fast head.
--   next_slow, next_fast: points of the second best head of the group, or an upper bound of them.
--   slow_place, fast_place: place of the best head of the group in the heads.
local function compare(heads, settings)
    local slow, fast = { points = NONE, next = NONE, place = 0 }, { points = NONE, next = NONE, place = 0 }
    local until_us = grows_evenly(settings) and math.huge or NEVER
    for place, lane, enqueued, id in string.gmatch(heads, "()(%l+%.%d+) (%d+) (%S+)") do
        local enqueued_us = tonumber(enqueued)
        local points, is_fast = points_of(lane, call.now_us - enqueued_us, settings)
        local group = is_fast and fast or slow
        if points > group.points
            or (points == group.points and score.is_older(enqueued_us, id, group.enqueued_us, group.id)) then
            group.points, group.next, group.place = points, group.points, place
            group.enqueued_us, group.id = enqueued_us, id
        elseif points > group.next then
            group.next = points
        end
        if enqueued_us > call.now_us then -- the clock was set back: until then the job gains no points
            until_us = NEVER
        elseif is_fast then
            until_us = math.min(until_us, enqueued_us + settings.on_demand_age_cap_us)
        end
    end
    return {
        heads = heads, settings = settings, made_us = call.now_us, until_us = until_us,
        slow = slow.points, next_slow = slow.next, slow_place = slow.place,
        fast = fast.points, next_fast = fast.next, fast_place = fast.place,
    }
end

-- Returns the place of the best head of a comparison, and its present points.
local function best_of(comparison)
    local growth, fast_growth = score.growth(call.now_us - comparison.made_us, comparison.settings)
    local slow, fast, heads = comparison.slow + growth, comparison.fast + fast_growth, comparison.heads
    if fast > slow
        or (fast == slow and head_cache.is_older(heads, comparison.fast_place, heads, comparison.slow_place)) then
        return comparison.fast_place, fast
    end
    return comparison.slow_place, slow
end

-- Returns the place and the points of the best head in a part of a type's heads.
function head_cache.first_of_some(heads, settings)
    return best_of(compare(heads, settings))
end

-- Returns the cached comparisons of this fleet: type -> comparison.
local function fleet_comparisons()
    return fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MOST_COMPARISONS))
end

-- Returns true if a comparison is still valid for these heads and settings.
local function is_valid(comparison, heads, settings)
    local now_us = call.now_us
    return comparison.heads == heads and comparison.settings == settings
        and comparison.made_us <= now_us and now_us <= comparison.until_us
end

-- Returns a valid comparison of all `heads` of `type`.
function head_cache.compared(type, heads, settings)
    local comparisons = fleet_comparisons()
    local comparison = comparisons.of[type]
    if not comparison then
        return memo.keep(comparisons, type, compare(heads, settings))
    elseif not is_valid(comparison, heads, settings) then
        comparison = compare(heads, settings)
        comparisons.of[type] = comparison
    end
    return comparison
end

-- Returns the place and the points of the best head in all `heads` of `type`.
function head_cache.first(type, heads, settings)
    return best_of(head_cache.compared(type, heads, settings))
end

-- Finds the best job, without rarity, in several `fields` of key `near_heads`.
--   heads_by_field: the heads in each of these fields, or false.
--   bytes: bytes of heads that may be compared. Heads beyond that are skipped unless a valid comparison is cached.
-- Returns the position of the field (or false), the place of the head, its points, and the remaining bytes. The bytes
-- are negative if heads were skipped.
function head_cache.first_of(fields, heads_by_field, settings, bytes)
    local comparisons, now_us, growth_rate = fleet_comparisons().of, call.now_us, settings.age_weight
    local best, best_place, best_points = false, nil, NONE
    for nth = 1, #fields do
        local heads = heads_by_field[nth]
        local comparison = heads and comparisons[fields[nth]]
        if heads and (not comparison or comparison.heads ~= heads or comparison.settings ~= settings -- as in `is_valid`
            or comparison.made_us > now_us or now_us > comparison.until_us) then
            bytes = bytes - #heads
            comparison = bytes >= 0 and head_cache.compared(fields[nth], heads, settings)
        end
        if comparison then
            local place, points = comparison.slow_place, comparison.slow + (now_us - comparison.made_us) * growth_rate
            if comparison.fast ~= NONE then
                place, points = best_of(comparison)
            end
            if points > best_points -- not for a text without heads, written by another client
                or (best and points == best_points
                    and head_cache.is_older(heads, place, heads_by_field[best], best_place)) then
                best, best_place, best_points = nth, place, points
            end
        end
    end
    return best, best_place, best_points, bytes
end

-- Updates the cached comparison after the job at `place` was popped from the heads of `type`, without comparing all
-- heads. The next job of the lane is usually again the best of its group; otherwise the comparison becomes invalid.
--   before, after: the heads.
--   next_enqueued: enqueue time of the next job of its lane, or nil.
function head_cache.popped(type, place, lane, before, after, next_enqueued, settings)
    local comparison, now_us = next_enqueued and fleet_comparisons().of[type], call.now_us
    local age_us = comparison and now_us - tonumber(next_enqueued)
    if not comparison or age_us < 0 or not is_valid(comparison, before, settings) then
        return
    end
    local shift = #after - #before
    local points, is_fast = points_of(lane, age_us, settings)
    local growth, fast_growth = score.growth(now_us - comparison.made_us, settings)
    local next_slow, next_fast = comparison.next_slow + growth, comparison.next_fast + fast_growth
    local slow, fast = comparison.slow + growth, comparison.fast + fast_growth
    if is_fast and place == comparison.fast_place and points > next_fast then
        fast, comparison.slow_place =
            points, comparison.slow_place > place and comparison.slow_place + shift or comparison.slow_place
    elseif not is_fast and place == comparison.slow_place and points > next_slow then
        slow, comparison.fast_place =
            points, comparison.fast_place > place and comparison.fast_place + shift or comparison.fast_place
    else
        return
    end
    comparison.heads, comparison.made_us = after, now_us
    comparison.slow, comparison.next_slow, comparison.fast, comparison.next_fast = slow, next_slow, fast, next_fast
end

-- best_types: chooses the best head of several types if a free slot fits all of them and rarity depends on all slots of
-- a type. Caches the points of each type at one time, for its present heads. All slow heads (`head_cache`) gain points
-- at one rate, all fast heads at another. A claim therefore compares two numbers per type, and recomputes them only if
-- the type's heads have changed. The slot counts are read when the points are computed: a change of slots or settings
-- changes `text` (`settings_in_force.for_a_claim`).

local lists_of_fleets = memo.cache(protocol.MOST_FLEETS) -- key prefix of a fleet -> list of types -> their points

-- Returns the cached points of this fleet's lists of types.
local function fleet_lists()
    return lists_of_fleets.of[key.base] or memo.keep(lists_of_fleets, key.base, memo.cache(protocol.MOST_COMPARISONS))
end

-- Returns a table for the points of `types` under these settings. Lists are indexed by the position of a type.
--   made_us: the time at which the points were computed.
--   until_us: the time up to which the points of all types are valid.
--   rarity: points for rarity.
--   heads: the heads whose points are computed, none at first.
--   slow, slow_place: points and place of the best slow head.
--   fast, fast_place: points and place of the best fast head.
local function new_points(types, settings, text)
    local rarity = {}
    for nth, slots in ipairs(lanes.fields(key.capacity, types)) do
        rarity[nth] = score.rarity(slots or 1, settings)
    end
    return {
        settings = settings, text = text, made_us = call.now_us, until_us = math.huge, rarity = rarity, heads = {},
        slow = {}, slow_place = {}, fast = {}, fast_place = {},
    }
end

-- Computes the points of the `nth` type.
local function update(points, nth, type, heads)
    if heads == "" then
        points.slow[nth], points.fast[nth] = NONE, NONE
    else
        local comparison, rarity = head_cache.compared(type, heads, points.settings), points.rarity[nth]
        local growth, fast_growth = score.growth(points.made_us - comparison.made_us, points.settings)
        points.slow[nth], points.slow_place[nth] = comparison.slow + growth + rarity, comparison.slow_place
        points.fast[nth], points.fast_place[nth] = comparison.fast + fast_growth + rarity, comparison.fast_place
        points.until_us = math.min(points.until_us, comparison.until_us)
    end
    points.heads[nth] = heads
end

-- Returns true if the best head of the `nth` type is older than the best head of the type at position `other`. Breaks
-- ties of points; `other` can be nil.
--   places, other_places: position of a type -> place of its best slow or fast head.
local function is_older(points, nth, places, other, other_places)
    local heads = points.heads
    return other and head_cache.is_older(heads[nth], places[nth], heads[other], other_places[other])
end

-- Returns the present points of `types`.
local function type_points_of(types, settings, text)
    local lists = fleet_lists()
    local points, now_us = lists.of[types], call.now_us
    if not points then
        return memo.keep(lists, types, new_points(types, settings, text))
    elseif points.text ~= text or now_us < points.made_us or now_us > points.until_us then
        points = new_points(types, settings, text)
        lists.of[types] = points
    end
    return points
end

-- Returns the type with the best head, and the head's place, or nil.
local function first_type(choice)
    local types, heads = choice.types, choice.heads
    local points = type_points_of(types, choice.settings, choice.text)
    local compared_heads, slow, fast = points.heads, points.slow, points.fast
    local best_slow, first_slow, best_fast, first_fast = NONE, nil, NONE, nil
    for nth = 1, #types do
        local type_heads = heads[types[nth]] or ""
        if compared_heads[nth] ~= type_heads then
            update(points, nth, types[nth], type_heads)
        end
        local type_slow, type_fast = slow[nth], fast[nth]
        if type_slow > best_slow
            or type_slow == best_slow and is_older(points, nth, points.slow_place, first_slow, points.slow_place) then
            best_slow, first_slow = type_slow, nth
        end
        if type_fast > best_fast
            or type_fast == best_fast and is_older(points, nth, points.fast_place, first_fast, points.fast_place) then
            best_fast, first_fast = type_fast, nth
        end
    end
    local growth, fast_growth = score.growth(call.now_us - points.made_us, choice.settings)
    best_slow, best_fast = best_slow + growth, best_fast + fast_growth
    if best_fast > best_slow or first_fast and best_fast == best_slow
        and is_older(points, first_fast, points.fast_place, first_slow, points.slow_place) then
        return types[first_fast], points.fast_place[first_fast]
    end
    return types[first_slow], points.slow_place[first_slow]
end

local function first(choice)
    local type, place = first_type(choice)
    local heads = choice.heads[type]
    local job = heads and lanes.checked_job(type, heads, place)
    if heads and not job then
        error("spoiled heads of type " .. type)
    end
    return job or nil, false
end

local function popped(choice, job, before, next_enqueued)
    local after = choice.heads[job.type] or ""
    head_cache.popped(job.type, job.place, job.lane, before, after, next_enqueued, choice.settings)
end

local function changed() end

-- Returns true if the settings permit this way of comparing types.
function best_types.may_choose(settings)
    return settings.rarity ~= "free" and settings.priority_percentage == 100
end

-- Returns a choice (see `job_choice.among`) from the jobs of `types`, a list that many invocations share.
function best_types.choice(types, heads, settings, text)
    return {
        types = types, heads = heads, settings = settings, text = text, first = first, popped = popped,
        changed = changed,
    }
end
