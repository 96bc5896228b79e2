-- head_cache: which head of a type goes first. Heads whose scores grow alike keep their order among themselves: there
-- are two such groups, the "slow" heads of queued jobs and of on-demand jobs that have reached the cap, and the "fast"
-- heads of on-demand jobs that have not. So what a comparison of all heads found out is kept, and holds for these heads
-- (one text), these settings, and until a fast head reaches the cap, or the clock is set back.
-- Cost: to compare 22 heads costs about 20 times as much as to go by an earlier comparison.
local NONE, NEVER = -1 / 0, -1

local fleets = memo.cache(protocol.MOST_FLEETS) -- prefix of a fleet's keys -> type -> the comparison of its heads

-- RETURNS whether the points of a job grow by a whole number each µs: then no rounding changes an order.
local function grows_evenly(settings)
    return settings.age_weight % 1 == 0 and settings.on_demand_age_weight % 1 == 0
end

-- RETURNS the points of a job of `lane` that is so old, and whether it is fast. What the name of a lane means is worked
-- out once, and kept with `settings`.
local function points_of(lane, age_us, settings)
    local standing, on_demand = settings.standings.of[lane], lanes.is_on_demand(lane)
    if not standing then
        standing = memo.keep(settings.standings, lane, score.standing(lanes.priority(lane), on_demand, settings))
    end
    return standing + score.patience(on_demand, age_us, settings), on_demand and age_us < settings.on_demand_age_cap_us
end

-- RETURNS the points without rarity of a job of `lane` that waits since `enqueued`, µs, as a text.
function head_cache.points(lane, enqueued, settings)
    return (points_of(lane, call.now_us - tonumber(enqueued), settings))
end

-- RETURNS whether the head at `place` is of an older job than another head. Ties go to the smaller id.
function head_cache.is_older(heads, place, others, others_place)
    local _, enqueued, id = lanes.at(heads, place)
    local _, others_enqueued, others_id = lanes.at(others, others_place)
    return score.is_older(tonumber(enqueued), id, tonumber(others_enqueued), others_id)
end

-- RETURNS the place of the oldest job in `heads`.
function head_cache.oldest(heads)
    local first, first_us, first_id
    for place, enqueued, id in string.gmatch(heads, "()%l+%.%d+ (%d+) (%S+)") do
        local enqueued_us = tonumber(enqueued)
        if not first or score.is_older(enqueued_us, id, first_us, first_id) then
            first, first_us, first_id = place, enqueued_us, id
        end
    end
    return first
end

-- Compares all `heads`. RETURNS a comparison: the heads and settings; from when until when it holds, µs; and of the
-- slow heads, and of the fast: points of the best one, points of the second best or more, place of the best in the
-- heads.
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

-- RETURNS the place of the head that goes first by a comparison, and its points by now.
local function first_by(found)
    local growth, fast_growth = score.growth(call.now_us - found.made_us, found.settings)
    local slow, fast, heads = found.slow + growth, found.fast + fast_growth, found.heads
    if fast > slow
        or (fast == slow and head_cache.is_older(heads, found.fast_place, heads, found.slow_place)) then
        return found.fast_place, fast
    end
    return found.slow_place, slow
end

-- RETURNS the place and the points of the head that goes first of some `heads`.
function head_cache.first_of_some(heads, settings)
    return first_by(compare(heads, settings))
end

-- RETURNS the comparisons that are kept of this fleet's types, by type.
local function of_fleet()
    return fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MOST_COMPARISONS))
end

-- RETURNS whether a comparison holds for these heads and settings by now.
local function holds(found, heads, settings)
    local now_us = call.now_us
    return found.heads == heads and found.settings == settings and found.made_us <= now_us and now_us <= found.until_us
end

-- RETURNS a comparison of all `heads` of `type` that holds by now.
function head_cache.compared(type, heads, settings)
    local comparisons = of_fleet()
    local found = comparisons.of[type]
    if not found then
        return memo.keep(comparisons, type, compare(heads, settings))
    elseif not holds(found, heads, settings) then
        found = compare(heads, settings)
        comparisons.of[type] = found
    end
    return found
end

-- RETURNS the place and the points of the head that goes first of all `heads` of `type`.
function head_cache.first(type, heads, settings)
    return first_by(head_cache.compared(type, heads, settings))
end

-- Finds the job that goes first, rarity left out, in several `fields` of key `near_heads`. `all`: the heads in each of
-- these fields, false for none. `bytes`: bytes of heads that may be compared anew; the heads beyond that are left out,
-- unless a comparison of them is kept that holds.
-- RETURNS the position of the field, false for none; the place of the head there; its points; and the bytes that are
-- left, below 0 if heads were left out.
function head_cache.first_of(fields, all, settings, bytes)
    local comparisons, now_us, gain = of_fleet().of, call.now_us, settings.age_weight
    local first, first_place, most = false, nil, NONE
    for nth = 1, #fields do
        local heads = all[nth]
        local found = heads and comparisons[fields[nth]]
        if heads and (not found or found.heads ~= heads or found.settings ~= settings -- as in `holds`
            or found.made_us > now_us or now_us > found.until_us) then
            bytes = bytes - #heads
            found = bytes >= 0 and head_cache.compared(fields[nth], heads, settings)
        end
        if found then
            local place, points = found.slow_place, found.slow + (now_us - found.made_us) * gain
            if found.fast ~= NONE then
                place, points = first_by(found)
            end
            if points > most -- not of a text without heads, which somebody wrote
                or (first and points == most and head_cache.is_older(heads, place, all[first], first_place)) then
                first, first_place, most = nth, place, points
            end
        end
    end
    return first, first_place, most, bytes
end

-- The job at `place` was popped from the heads of `type`: brings what is kept of them up to date without comparing all.
-- `before`, `after`: the heads. `next_enqueued`: when the next job of its lane came, nil if there is none. Mostly that
-- one is the best of its group again; else what is kept holds no more.
function head_cache.popped(type, place, lane, before, after, next_enqueued, settings)
    local found, now_us = next_enqueued and of_fleet().of[type], call.now_us
    local age_us = found and now_us - tonumber(next_enqueued)
    if not found or age_us < 0 or not holds(found, before, settings) then
        return
    end
    local longer = #after - #before
    local points, is_fast = points_of(lane, age_us, settings)
    local growth, fast_growth = score.growth(now_us - found.made_us, settings)
    local next_slow, next_fast = found.next_slow + growth, found.next_fast + fast_growth
    local slow, fast = found.slow + growth, found.fast + fast_growth
    if is_fast and place == found.fast_place and points > next_fast then
        fast, found.slow_place = points, found.slow_place > place and found.slow_place + longer or found.slow_place
    elseif not is_fast and place == found.slow_place and points > next_slow then
        slow, found.fast_place = points, found.fast_place > place and found.fast_place + longer or found.fast_place
    else
        return
    end
    found.heads, found.made_us = after, now_us
    found.slow, found.next_slow, found.fast, found.next_fast = slow, next_slow, fast, next_fast
end
