-- best_heads: which head of a type goes first. Heads whose scores grow alike keep their order among themselves: there
-- are two such groups, the "slow" heads of queued jobs and of on-demand jobs that have reached the cap, and the "fast"
-- heads of on-demand jobs that have not. So what a comparison of all heads found out is cached in key `leaders`. A
-- script that changes the heads of a type deletes or rewrites the type's cache. A cache is believed while the settings
-- are the same and no fast head has reached the cap.
-- Cost: to compare 22 heads costs some 20 times as much as to read their cache.
-- A reason for the length: to write, to believe and to go on with a cache are one subject.
-- Format of a cache: revision of the settings, time at which it was made, time until which it holds, µs; then of the
-- slow heads, and of the fast: points of the best, points of the second best or more, place of the best in the heads.
-- These are numbers since a text would have to be parsed.
local CACHE = "<ddddddddd"
local MANY = 80 -- bytes of some two heads, which are compared as fast as a cache is read
local NONE, NEVER = -1 / 0, -1
local D = 100 -- with this letter the name of a lane on demand begins

-- RETURNS whether the points of a job grow by a whole number each µs: then no rounding changes an order.
local function grows_evenly(settings)
    return settings.age_weight % 1 == 0 and settings.on_demand_age_weight % 1 == 0
end

-- RETURNS the points of a job of `lane` that is so old, and whether it is fast. What the name of a lane means is worked
-- out once, and kept with `settings`.
local function points_of(lane, age_us, settings)
    local standing, on_demand = settings.standings.of[lane], string.byte(lane) == D
    if not standing then
        local _, priority = lanes.kind(lane)
        standing = kept.keep(settings.standings, lane, score.standing(priority, on_demand, settings))
    end
    return standing + score.patience(on_demand, age_us, settings), on_demand and age_us < settings.on_demand_age_cap_us
end

-- RETURNS whether the head at `place` is of an older job than another head. Ties go to the smaller id.
function best_heads.is_older(heads, place, others, others_place)
    local _, enqueued, id = lanes.at(heads, place)
    local _, others_enqueued, others_id = lanes.at(others, others_place)
    return score.is_older(tonumber(enqueued), id, tonumber(others_enqueued), others_id)
end

-- RETURNS the place of the head that goes first, and its points by now, from the numbers of a cache.
local function first_of(heads, settings, made_us, slow, slow_place, fast, fast_place)
    local since_us = call.now_us - made_us
    slow = slow + since_us * settings.age_weight
    fast = fast + since_us * (settings.age_weight + settings.on_demand_age_weight)
    if fast > slow or (fast == slow and best_heads.is_older(heads, fast_place, heads, slow_place)) then
        return fast_place, fast
    end
    return slow_place, slow
end

-- RETURNS three tables with an entry for each of `types` that has a cache to be believed: the cache, the place of the
-- head that goes first, its points; and a list of all caches, false where a type has none.
function best_heads.read(types, heads, settings)
    local caches, places, points = {}, {}, {}
    local found = lanes.fields(key.leaders, types)
    for nth, cache in ipairs(found) do
        if cache then
            local revision, made_us, until_us, slow, _, slow_place, fast, _, fast_place = struct.unpack(CACHE, cache)
            if revision == settings.revision and made_us <= call.now_us and call.now_us <= until_us then
                caches[nth] = cache
                places[nth], points[nth] =
                    first_of(heads[types[nth]], settings, made_us, slow, slow_place, fast, fast_place)
            end
        end
    end
    return caches, places, points, found
end

-- RETURNS the place and the points of the only head, if `heads` has one head.
function best_heads.only(heads, settings)
    local lane, enqueued = string.match(heads, "^(%S+) (%S+) %S+$")
    if lane then
        return 1, (points_of(lane, call.now_us - tonumber(enqueued), settings))
    end
end

-- RETURNS the place of the oldest job in `heads`.
function best_heads.oldest(heads)
    local first, first_us, first_id
    for place, enqueued, id in string.gmatch(heads, "()%S+ (%S+) (%S+)") do
        local enqueued_us = tonumber(enqueued)
        if not first or score.is_older(enqueued_us, id, first_us, first_id) then
            first, first_us, first_id = place, enqueued_us, id
        end
    end
    return first
end

-- Compares all `heads`. RETURNS a cache.
function best_heads.compare(heads, settings)
    local slow, fast = { points = NONE, next = NONE, place = 0 }, { points = NONE, next = NONE, place = 0 }
    local until_us = grows_evenly(settings) and math.huge or NEVER
    for place, lane, enqueued, id in string.gmatch(heads, "()(%S+) (%S+) (%S+)") do
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
    return struct.pack(CACHE, settings.revision, call.now_us, until_us, slow.points, slow.next, slow.place,
        fast.points, fast.next, fast.place)
end

-- RETURNS the place of the head that goes first, and its points by now, by a cache.
function best_heads.first(cache, heads, settings)
    local _, made_us, _, slow, _, slow_place, fast, _, fast_place = struct.unpack(CACHE, cache)
    return first_of(heads, settings, made_us, slow, slow_place, fast, fast_place)
end

-- RETURNS the cache of `heads` in which the next job of its lane has replaced `job`, and which are longer by `longer`;
-- nil if all heads have to be compared. Mostly the next job is the best of its group again.
function best_heads.after(cache, heads, job, longer, settings)
    local revision, made_us, until_us, slow, next_slow, slow_place, fast, next_fast, fast_place =
        struct.unpack(CACHE, cache)
    local place, lane = job.place, job.lane
    local next_lane, enqueued = lanes.at(heads, place)
    local age_us = next_lane == lane and call.now_us - tonumber(enqueued) or -1
    if age_us < 0 then
        return nil
    end
    local points, is_fast = points_of(lane, age_us, settings)
    local gained = (call.now_us - made_us) * settings.age_weight
    slow, next_slow = slow + gained, next_slow + gained
    gained = gained + (call.now_us - made_us) * settings.on_demand_age_weight
    fast, next_fast = fast + gained, next_fast + gained
    if is_fast and place == fast_place and points > next_fast then
        fast, slow_place = points, slow_place > place and slow_place + longer or slow_place
    elseif not is_fast and place == slow_place and points > next_slow then
        slow, fast_place = points, fast_place > place and fast_place + longer or fast_place
    else
        return nil
    end
    return struct.pack(CACHE, revision, call.now_us, until_us, slow, next_slow, slow_place, fast, next_fast,
        fast_place)
end

-- Writes the cache of `type`, or deletes it if `cache` is nil, or not worth it with these `heads`. `had_one`: whether
-- the type has a cache until now.
function best_heads.write(type, heads, cache, had_one)
    if cache and #heads > MANY then
        local _, _, until_us = struct.unpack(CACHE, cache)
        if until_us ~= NEVER then
            redis.call("HSET", key.leaders, type, cache)
            return
        end
    end
    if had_one then
        redis.call("HDEL", key.leaders, type)
    end
end
