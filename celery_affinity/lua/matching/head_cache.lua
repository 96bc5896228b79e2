-- head_cache: finds the best head of types and hints. Heads whose scores grow at one rate keep their order. There
-- are two such groups: "slow" heads (queued jobs, and on-demand jobs past the age cap) and "fast" heads (other
-- on-demand jobs). The result of comparing all heads is therefore cached. It is valid for the same heads (one string)
-- and settings, until a fast head reaches the age cap or the clock is set back.
--
-- Cost: comparing 22 heads costs about 20 times as much as using the cached comparison.
local NONE, NEVER = -1 / 0, -1

local fleets = memo.cache(protocol.MAX_FLEETS) -- key prefix of a fleet -> type or hint field -> its comparison

-- Returns the points without rarity for a job in `lane` with this age, and true if it is fast. The constant points of a
-- lane are computed once, and cached in `settings`.
function head_cache.points(lane, age_us, settings)
    local standing, on_demand = settings.standings.of[lane], lanes.is_on_demand(lane)
    if not standing then
        standing = memo.keep(settings.standings, lane, score.standing(lanes.priority(lane), on_demand, settings))
    end
    return standing + score.patience(on_demand, age_us, settings), on_demand and age_us < settings.on_demand_age_cap_us
end

-- Returns true if the head at `place` has an older job than another head. Ties go to the smaller id.
function head_cache.is_older(heads, place, other_heads, other_place)
    local _, enqueued, id = lanes.head_at(heads, place)
    local _, other_enqueued, other_id = lanes.head_at(other_heads, other_place)
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
--   slow, fast: the best head of each group, as a table:
--     points: its points, and in `next` those of the second best head of the group, or an upper bound of them.
--     place, lane, enqueued, enqueued_us: its place in the heads, its lane, and the enqueue time of its job.
local function compare(heads, settings)
    local slow, fast = { points = NONE, next = NONE, place = 0 }, { points = NONE, next = NONE, place = 0 }
    -- If a job gains a whole number of points per µs, rounding never changes an order.
    local grows_evenly = settings.age_weight % 1 == 0 and settings.on_demand_age_weight % 1 == 0
    local until_us = grows_evenly and math.huge or NEVER
    for place, lane, enqueued, id in string.gmatch(heads, "()(%l+%.%d+) (%d+) (%S+)") do
        local enqueued_us = tonumber(enqueued)
        local points, is_fast = head_cache.points(lane, call.now_us - enqueued_us, settings)
        local group = is_fast and fast or slow
        if points > group.points
            or (points == group.points and score.is_older(enqueued_us, id, group.enqueued_us, group.id)) then
            group.points, group.next, group.place = points, group.points, place
            group.lane, group.enqueued, group.enqueued_us, group.id = lane, enqueued, enqueued_us, id
        elseif points > group.next then
            group.next = points
        end
        if enqueued_us > call.now_us then -- the clock was set back: until then the job gains no points
            until_us = NEVER
        elseif is_fast then
            until_us = math.min(until_us, enqueued_us + settings.on_demand_age_cap_us)
        end
    end
    slow.id, fast.id = nil, nil -- `head_cache.popped` does not know the next one
    return { heads = heads, settings = settings, made_us = call.now_us, until_us = until_us, slow = slow, fast = fast }
end

-- Returns the points that slow jobs and fast jobs gain per µs.
local function rates(settings)
    return settings.age_weight, settings.age_weight + settings.on_demand_age_weight
end

-- Returns the best head of a comparison, and its present points. `slow_rate`, `fast_rate`: see `rates`.
local function best_of(comparison, slow_rate, fast_rate)
    local us, heads, slow, fast = call.now_us - comparison.made_us, comparison.heads, comparison.slow, comparison.fast
    local slow_points, fast_points = slow.points + us * slow_rate, fast.points + us * fast_rate
    if fast_points > slow_points
        or (fast_points == slow_points and head_cache.is_older(heads, fast.place, heads, slow.place)) then
        return fast, fast_points
    end
    return slow, slow_points
end

-- Returns the cached comparisons of this fleet: type -> comparison.
local function fleet_comparisons()
    return fleets.of[key.base] or memo.keep(fleets, key.base, memo.cache(protocol.MAX_COMPARISONS))
end

-- Returns true if a comparison is still valid for these heads and settings.
local function is_valid(comparison, heads, settings)
    local now_us = call.now_us
    return comparison.heads == heads and comparison.settings == settings
        and comparison.made_us <= now_us and now_us <= comparison.until_us
end

-- Compares all `heads` under `name`, a type or a field of key `hint_heads`, and caches the comparison.
local function compared(name, heads, settings)
    local comparison, comparisons = compare(heads, settings), fleet_comparisons()
    if not comparisons.of[name] then
        return memo.keep(comparisons, name, comparison)
    end
    comparisons.of[name] = comparison
    return comparison
end

-- Returns the place and the points of the best head in `heads`. Returns nil if it must be compared beyond the `budget`.
--   name: as in `compared`; false for heads that are only a part of the heads under this name.
--   budget: as in `head_cache.first`.
function head_cache.best(name, heads, settings, budget)
    local comparison = name and fleet_comparisons().of[name]
    if not comparison or not is_valid(comparison, heads, settings) then
        budget.bytes = budget.bytes - #heads
        if budget.bytes < 0 then
            return nil
        end
        comparison = name and compared(name, heads, settings) or compare(heads, settings)
    end
    local head, points = best_of(comparison, rates(settings))
    return head.place, points
end

-- Returns the position of the name with the best head, that head (see `compare`), and its points. Returns nil without
-- heads.
--   names: types, or fields of key `hint_heads`.
--   heads: the heads of each name, by name, or false or nil; by position without `rarity`.
--   rarity: points for rarity of each name, or nil.
--   budget: table whose field `bytes` is the number of bytes of heads that may still be compared. Heads beyond it are
--     skipped unless a valid comparison is cached.
function head_cache.first(names, heads, settings, rarity, budget)
    local comparisons, now_us = fleet_comparisons().of, call.now_us
    local slow_rate, fast_rate = rates(settings)
    local best, best_heads, best_head, best_points = nil, nil, nil, NONE
    for nth = 1, #names do
        local name = names[nth]
        local text = heads[rarity and name or nth]
        local comparison = text and comparisons[name]
        if text and (not comparison or comparison.heads ~= text or comparison.settings ~= settings -- as in `is_valid`
            or comparison.made_us > now_us or now_us > comparison.until_us) then
            budget.bytes = budget.bytes - #text
            comparison = budget.bytes >= 0 and compared(name, text, settings)
        end
        if comparison then
            local us = now_us - comparison.made_us
            local head, fast = comparison.slow, comparison.fast
            local points, fast_points = head.points + us * slow_rate, fast.points + us * fast_rate
            if fast_points > points then -- as in `best_of`
                head, points = fast, fast_points
            elseif fast_points == points and points ~= NONE then
                head, points = best_of(comparison, slow_rate, fast_rate)
            end
            if rarity then
                points = points + rarity[name]
            end
            if points > best_points -- not for a text without heads, written by another client
                or (best and points == best_points
                    and head_cache.is_older(text, head.place, best_heads, best_head.place)) then
                best, best_heads, best_head, best_points = nth, text, head, points
            end
        end
    end
    return best, best_head, best_points
end

-- Updates the cached comparison after the job at `place` was popped from the heads of `name`, without comparing all
-- heads. The next job of its lane has the same constant points, and is usually again the best of its group; otherwise
-- the comparison becomes invalid.
--   before, after: the heads.
--   next_enqueued: enqueue time of the next job of its lane, or nil.
function head_cache.popped(name, place, lane, before, after, next_enqueued, settings)
    local comparison, now_us = next_enqueued and fleet_comparisons().of[name], call.now_us
    local next_us = comparison and tonumber(next_enqueued)
    if not comparison or next_us > now_us or not is_valid(comparison, before, settings) then
        return
    end
    local slow_rate, fast_rate = rates(settings)
    local group, other, rate = comparison.slow, comparison.fast, slow_rate
    if place == other.place then
        group, other, rate = other, group, fast_rate
    elseif place ~= group.place
        or lanes.is_on_demand(lane) and next_us + settings.on_demand_age_cap_us > now_us then -- the next job is fast
        return
    end
    local points = next_us >= group.enqueued_us and group.points - (next_us - group.enqueued_us) * rate or NONE
    if points > group.next then
        group.points, group.enqueued, group.enqueued_us = points, next_enqueued, next_us
        other.place = other.place > place and other.place + #after - #before or other.place
        comparison.heads = after
    end
end
