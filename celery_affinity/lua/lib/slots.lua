-- slots: free slots are counted per profile (the set of types a worker serves), not per type and worker.
-- @include lib/clock.lua
local slots = {}

-- Brings the free slots of a worker up to date with what it holds: slots - claims - other running requests, of which
-- there are less than none when claims that wait for a rate limit lend their slots.
-- Derived, not added up, so that no sequence of calls can leak one.
function slots.settle(worker)
    local row = redis.call("HMGET", key.worker(worker), "profile", "slots", "other", "accepting", "free", "stalled")
    local profile, was = row[1], tonumber(row[5])
    if not profile then
        return
    end
    local free = 0
    if row[4] == "1" and not row[6] and tonumber(row[2]) > 0 then -- who has no slot has none to lend
        free = math.max(0, tonumber(row[2]) - tonumber(row[3]) - redis.call("HLEN", key.claims(worker)))
    end
    if free == 0 then
        redis.call("ZREM", key.free(profile), worker)
    elseif free ~= was then
        redis.call("ZADD", key.free(profile), clock.now_us, worker)
    end
    if free ~= was then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, free - was)
    end
end

-- A view of the free slots that lasts for one call of a script: it reads each figure once and is told of each grant.
function slots.view()
    local view = { serving = {}, free = {} }

    local function profiles_of(type)
        if not view.serving[type] then
            view.serving[type] = redis.call("ZRANGE", key.serving(type), 0, -1, "WITHSCORES")
        end
        return view.serving[type]
    end

    local function free_slots(profile)
        if not view.free[profile] then
            view.free[profile] = tonumber(redis.call("HGET", key.free_slots, profile) or 0)
        end
        return view.free[profile]
    end

    function view.free_for(type)
        local free, profiles = 0, profiles_of(type)
        for i = 1, #profiles, 2 do
            free = free + free_slots(profiles[i])
        end
        return free
    end

    function view.any_free(type)
        local profiles = profiles_of(type)
        for i = 1, #profiles, 2 do
            if free_slots(profiles[i]) > 0 then
                return true
            end
        end
        return false
    end

    -- The most specialised worker with a free slot; then the longest idle; then the smaller id.
    -- RETURNS worker, profile
    function view.best(type)
        local profiles = profiles_of(type)
        local best, best_profile, best_size, best_since
        for i = 1, #profiles, 2 do
            local profile, size = profiles[i], tonumber(profiles[i + 1])
            if best and size > best_size then
                break
            end
            if free_slots(profile) > 0 then
                local first = redis.call("ZRANGE", key.free(profile), 0, 0, "WITHSCORES")
                local worker, since = first[1], tonumber(first[2])
                if not best or since < best_since or (since == best_since and worker < best) then
                    best, best_profile, best_size, best_since = worker, profile, size, since
                end
            end
        end
        return best, best_profile
    end

    function view.taken(profile)
        view.free[profile] = view.free[profile] - 1
    end

    return view
end
