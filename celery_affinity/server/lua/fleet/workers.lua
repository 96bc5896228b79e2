-- workers: who is alive, with which types and how many slots.
-- @include base/clock.lua
-- @include placing/free_slots.lua
local workers = {}

function workers.split(types)
    local list = {}
    for type in string.gmatch(types or "", "%S+") do
        list[#list + 1] = type
    end
    return list
end

function workers.types_of(worker)
    return workers.split(redis.call("HGET", key.worker(worker), "types"))
end

local function change_slots(profile, types, by)
    redis.call("HINCRBY", key.slots, profile, by)
    for _, type in ipairs(types) do
        if redis.call("HINCRBY", key.capacity, type, by) <= 0 then
            redis.call("HDEL", key.capacity, type)
        end
    end
end

-- Puts a worker, whose hash says profile and slots, into its profile. A profile comes with its first worker.
function workers.attach(worker, profile, types)
    if redis.call("HINCRBY", key.members, profile, 1) == 1 then
        redis.call("HSET", key.profiles, profile, table.concat(types, " "))
        for _, type in ipairs(types) do
            redis.call("ZADD", key.serving(type), #types, profile)
        end
    end
    change_slots(profile, types, tonumber(redis.call("HGET", key.worker(worker), "slots")))
    redis.call("HSET", key.worker(worker), "accepting", "1", "free", 0, "types", table.concat(types, " "))
    redis.call("HDEL", key.worker(worker), "stalled")
    free_slots.recount(worker)
end

-- No job is placed on the worker from here on; what it holds it keeps.
function workers.close(worker)
    redis.call("HSET", key.worker(worker), "accepting", "0")
    free_slots.recount(worker)
end

-- The worker's event loop stands still: no job is placed on it until the loop turns again.
function workers.stall(worker)
    redis.call("HSET", key.worker(worker), "stalled", "1")
    free_slots.recount(worker)
end

-- The loop turns. The caller settles the worker's slots. RETURNS whether it stood still before.
function workers.resume(worker)
    return redis.call("HDEL", key.worker(worker), "stalled") == 1
end

-- Takes a worker out of its profile; a profile goes with its last worker.
function workers.detach(worker)
    workers.close(worker)
    local row = redis.call("HMGET", key.worker(worker), "profile", "slots")
    if not row[1] then
        return -- somebody deleted what was known of it
    end
    local types = workers.types_of(worker)
    change_slots(row[1], types, 0 - tonumber(row[2])) -- the negative of 0 would be "-0", no integer for Redis 7.0
    if redis.call("HINCRBY", key.members, row[1], -1) <= 0 then
        redis.call("HDEL", key.members, row[1])
        redis.call("HDEL", key.profiles, row[1])
        redis.call("HDEL", key.free_slots, row[1])
        redis.call("HDEL", key.slots, row[1])
        for _, type in ipairs(types) do
            redis.call("ZREM", key.serving(type), row[1])
            if redis.call("HEXISTS", key.capacity, type) == 0 then
                redis.call("HDEL", key.durations, type)
                redis.call("HDEL", key.ahead, type)
            end
        end
    end
end

function workers.resize(worker, now_slots)
    local row = redis.call("HMGET", key.worker(worker), "slots", "profile")
    local was = tonumber(row[1])
    if was ~= now_slots then
        change_slots(row[2], workers.types_of(worker), now_slots - was)
        redis.call("HSET", key.worker(worker), "slots", now_slots)
    end
end

-- Has one of those that tick for the fleet do it now, if its loop turns. Its inbox gets a sign, which is no job.
function workers.have_one_tick()
    for _, worker in ipairs(redis.call("ZRANGE", key.joined, 0, protocol.TICKERS - 1)) do
        local row = redis.call("HMGET", key.worker(worker), "accepting", "stalled")
        if row[1] == "1" and not row[2] then
            redis.call("LPUSH", key.inbox(worker), "\ntick")
            return
        end
    end
end

-- Forgets a worker that holds nothing any more.
function workers.remove(worker)
    workers.detach(worker)
    local name = redis.call("HGET", key.worker(worker), "name")
    if name and redis.call("HGET", key.names, name) == worker then
        redis.call("HDEL", key.names, name)
    end
    redis.call("ZREM", key.beats, worker)
    redis.call("ZREM", key.joined, worker)
    redis.call("UNLINK", key.worker(worker), key.claims(worker), key.inbox(worker), key.nudges(worker))
end
