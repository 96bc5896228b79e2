-- best_types: which head goes first of those of several types, where a free slot fits all of them, and a type's rarity
-- goes by all its slots. The points of each type are kept, as they were at one time, for these heads: those of slow
-- heads (`best_heads`) grow alike, and those of fast heads. So a claim looks at two numbers of a type, and works them
-- out only if its heads are others. The numbers of slots are read when the points are made: a change of slots, or of
-- settings, makes another `text` (`settings_in_force.for_a_claim`).
local NONE = -1 / 0

local fleets = memo.cache(protocol.MOST_FLEETS) -- prefix of a fleet's keys -> list of types -> their points

-- RETURNS the points that are kept of this fleet's lists of types.
local function of_fleet()
    return fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MOST_COMPARISONS))
end

-- RETURNS a table for the points that `types` have now, by these settings. By the position of a type: rarity: its
-- points for being rare; heads: the heads for which the following were worked out, none at first; slow, slow_place,
-- fast, fast_place: points and place of its best slow head, and of its best fast one. made_us: the time of which the
-- points are; until_us: until when those of all types hold.
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

-- Works out the points of the `nth` type.
local function renew(points, nth, type, heads)
    if heads == "" then
        points.slow[nth], points.fast[nth] = NONE, NONE
    else
        local found, rarity = head_cache.compared(type, heads, points.settings), points.rarity[nth]
        local growth, fast_growth = score.growth(points.made_us - found.made_us, points.settings)
        points.slow[nth], points.slow_place[nth] = found.slow + growth + rarity, found.slow_place
        points.fast[nth], points.fast_place[nth] = found.fast + fast_growth + rarity, found.fast_place
        points.until_us = math.min(points.until_us, found.until_us)
    end
    points.heads[nth] = heads
end

-- RETURNS whether the best head of the `nth` type goes before that of the type at position `other`, nil for none, which
-- has as many points. `places`, `others_places`: position of a type -> place of its best head, slow or fast.
local function is_older(points, nth, places, other, others_places)
    local heads = points.heads
    return other and head_cache.is_older(heads[nth], places[nth], heads[other], others_places[other])
end

-- RETURNS the points of `types` by now.
local function points_of(types, settings, text)
    local lists = of_fleet()
    local points, now_us = lists.of[types], call.now_us
    if not points then
        return memo.keep(lists, types, new_points(types, settings, text))
    elseif points.text ~= text or now_us < points.made_us or now_us > points.until_us then
        points = new_points(types, settings, text)
        lists.of[types] = points
    end
    return points
end

-- RETURNS the type whose head goes first, and the place of this head; nil if there is none.
local function first_type(choice)
    local types, heads = choice.types, choice.heads
    local points = points_of(types, choice.settings, choice.text)
    local its_heads, slow, fast = points.heads, points.slow, points.fast
    local most_slow, first_slow, most_fast, first_fast = NONE, nil, NONE, nil
    for nth = 1, #types do
        local current = heads[types[nth]] or ""
        if its_heads[nth] ~= current then
            renew(points, nth, types[nth], current)
        end
        local its_slow, its_fast = slow[nth], fast[nth]
        if its_slow > most_slow
            or its_slow == most_slow and is_older(points, nth, points.slow_place, first_slow, points.slow_place) then
            most_slow, first_slow = its_slow, nth
        end
        if its_fast > most_fast
            or its_fast == most_fast and is_older(points, nth, points.fast_place, first_fast, points.fast_place) then
            most_fast, first_fast = its_fast, nth
        end
    end
    local growth, fast_growth = score.growth(call.now_us - points.made_us, choice.settings)
    most_slow, most_fast = most_slow + growth, most_fast + fast_growth
    if most_fast > most_slow or first_fast and most_fast == most_slow
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

-- RETURNS whether types may be compared as is done here.
function best_types.may_choose(settings)
    return settings.rarity ~= "free" and settings.priority_percentage == 100
end

-- RETURNS a choice, as `job_choice.among` does, among the jobs of `types`, a list that is kept for many calls.
function best_types.choice(types, heads, settings, text)
    return {
        types = types, heads = heads, settings = settings, text = text, first = first, popped = popped,
        changed = changed,
    }
end
