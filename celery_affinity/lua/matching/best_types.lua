-- best_types: chooses the best head of several types if a free slot fits all of them and rarity depends on all slots of
-- a type. Caches the points of each type at one time, for its present heads. All slow heads (`head_cache`) gain points
-- at one rate, all fast heads at another. A claim therefore compares two numbers per type, and recomputes them only if
-- the type's heads have changed. The slot counts are read when the points are computed: a change of slots or settings
-- changes `text` (`settings_in_force.for_a_claim`).
local NONE = -1 / 0

local fleets = memo.cache(protocol.MOST_FLEETS) -- key prefix of a fleet -> list of types -> their points

-- Returns the cached points of this fleet's lists of types.
local function fleet_lists()
    return fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MOST_COMPARISONS))
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
local function points_of(types, settings, text)
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
    local points = points_of(types, choice.settings, choice.text)
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
