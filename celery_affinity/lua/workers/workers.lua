-- workers: the live workers, their types and their slots. Workers with the same types share a profile, so server
-- functions search for free slots per profile (`free_slots`).

-- Returns the tokens of a string as a list, which is empty for nil.
function workers.split(types)
    local list = {}
    for type in string.gmatch(types or "", "%S+") do
        list[#list + 1] = type
    end
    return list
end

-- Writes field `keeps` of a worker's hash, which each release reads. It has the retention of ended jobs in seconds, if
-- that is more than a minute, and "failed" if failed jobs become dead letters.
function workers.write_retention(worker)
    local keep_us, keeps_failed = unpack(redis.call("HMGET", key.settings, "keep_us", "keep_failed"))
    local keep_s = math.floor((tonumber(keep_us) or 0) / 1000000)
    local words = (keep_s > protocol.ENDED_KEPT_S and keep_s or "") .. (keeps_failed == "1" and " failed" or "")
    hash.write(key.worker(worker), "keeps", words ~= "" and words)
end

function workers.types_of(worker)
    return workers.split(redis.call("HGET", key.worker(worker), "types"))
end

-- Records in the metrics of `type` whether live workers serve the type. Only then the metrics have field `published`,
-- which a publish checks (`enqueue`). Without workers, the metrics expire after a while, and field `published before`
-- has the number.
function workers.note_served(type, is_served)
    local metrics_key = key.metrics(type)
    local source_field, target_field = "published", "published before"
    local exists
    if is_served then
        source_field, target_field = target_field, source_field
        exists = redis.call("PERSIST", metrics_key) == 1
    else
        exists = redis.call("EXPIRE", metrics_key, protocol.METRICS_KEPT_S) == 1
    end
    local number = exists and redis.call("HGET", metrics_key, source_field)
    if number then
        redis.call("HSET", metrics_key, target_field, number)
        redis.call("HDEL", metrics_key, source_field)
    end
end

-- Adds `by` slots to the counts of a profile and of its types. There can be thousands of types.
local function change_slots(profile, types, by)
    redis.call("HINCRBY", key.slots, profile, by)
    if by < 0 and hooks.read_word(redis.call("HGET", key.heads, "!")) == protocol.HAS_RESERVES then
        for _, type in ipairs(types) do
            call.to_fill[type] = true -- a share of fewer live slots is a smaller reserve
        end
    end
    local fields, unserved = {}, {}
    for nth, slots in ipairs(hash.read(key.capacity, types)) do
        local type, sum = types[nth], tonumber(slots or 0)
        if not sum then
            error("spoiled capacity of type " .. type)
        elseif sum + by > 0 then
            fields[#fields + 1], fields[#fields + 2] = type, sum + by
            if not slots then
                workers.note_served(type, true)
            end
        else
            unserved[#unserved + 1] = type
            workers.note_served(type, false)
        end
    end
    chunked.call("HSET", key.capacity, fields)
    chunked.call("HDEL", key.capacity, unserved)
    settings_in_force.renew_for_claims()
end

-- Adds a worker to its profile. The worker's hash has its profile and slots. The first worker creates the profile.
-- Returns true if it did.
function workers.attach(worker, profile, types)
    local is_first = redis.call("HINCRBY", key.members, profile, 1) == 1
    if is_first then
        redis.call("HSET", key.profiles, profile, table.concat(types, " "))
        for _, type in ipairs(types) do
            redis.call("ZADD", key.serving(type), #types, profile)
        end
    end
    change_slots(profile, types, tonumber(redis.call("HGET", key.worker(worker), "slots")))
    redis.call("HSET", key.worker(worker), "accepting", "1", "free", 0, "types", table.concat(types, " "))
    redis.call("HDEL", key.worker(worker), "stalled")
    free_slots.recount(worker)
    return is_first
end

-- Stops placing jobs on the worker, which keeps its claims.
function workers.close(worker)
    redis.call("HSET", key.worker(worker), "accepting", "0")
    free_slots.recount(worker)
end

-- Allows placing jobs on a stalled worker. The caller recounts the worker's free slots. Returns true if it was stalled.
function workers.resume(worker)
    return redis.call("HDEL", key.worker(worker), "stalled") == 1
end

-- Removes a worker from its profile. The last worker deletes the profile.
function workers.detach(worker)
    workers.close(worker)
    local profile, slots = unpack(redis.call("HMGET", key.worker(worker), "profile", "slots"))
    if not profile then
        return -- another client deleted the worker's hash
    end
    local types = workers.types_of(worker)
    change_slots(profile, types, 0 - tonumber(slots)) -- -0 would be "-0", not an integer for Redis 7.0
    if redis.call("HINCRBY", key.members, profile, -1) <= 0 then
        redis.call("HDEL", key.members, profile)
        redis.call("HDEL", key.profiles, profile)
        redis.call("HDEL", key.free_slots, profile)
        redis.call("HDEL", key.slots, profile)
        for _, type in ipairs(types) do
            redis.call("ZREM", key.serving(type), profile)
            if redis.call("HEXISTS", key.capacity, type) == 0 then
                redis.call("HDEL", key.durations, type)
                redis.call("HDEL", key.batched, type)
                redis.call("HDEL", key.prefetch_turn, type)
            end
        end
    end
end

-- Changes a worker's number of slots. The caller recounts its free slots.
function workers.resize(worker, now_slots)
    local slots, profile = unpack(redis.call("HMGET", key.worker(worker), "slots", "profile"))
    local was = tonumber(slots)
    if was ~= now_slots then
        change_slots(profile, workers.types_of(worker), now_slots - was)
        redis.call("HSET", key.worker(worker), "slots", now_slots)
    end
end

-- Makes one worker tick immediately, with a control message in its inbox. The workers that joined first tick for the
-- fleet. A worker that accepts no jobs gets no message.
function workers.trigger_tick()
    for _, worker in ipairs(redis.call("ZRANGE", key.joined, 0, protocol.TICKERS - 1)) do
        local accepting, stalled = unpack(redis.call("HMGET", key.worker(worker), "accepting", "stalled"))
        if accepting == "1" and not stalled then
            redis.call("LPUSH", key.inbox(worker), "\n" .. protocol.TICK_SIGN)
            return
        end
    end
end

-- Called when `member` of the sorted set `name` is due in `in_us`. Makes one worker tick if the next regular tick would
-- be too late, and no other member is due earlier.
function workers.tick_in_time(in_us, name, member)
    if in_us < protocol.TICK_US and redis.call("ZRANGE", name, 0, 0)[1] == member then
        workers.trigger_tick()
    end
end

-- Returns true if a worker should tick: it is among the first ones, or the last tick is old.
function workers.is_ticker(worker)
    local ticked = tonumber(redis.call("HGET", key.clock, "ticked")) or 0
    local rank = redis.call("ZRANK", key.joined, worker)
    return (rank and rank < protocol.TICKERS) or call.now_us - ticked > protocol.TICKED_LATELY_US
end

-- Deletes a worker without claims.
function workers.remove(worker)
    workers.detach(worker)
    local name, holds_hints = unpack(redis.call("HMGET", key.worker(worker), "name", "hints"))
    if holds_hints then
        hooks.worker_leaves(worker)
    end
    if name and redis.call("HGET", key.names, name) == worker then
        redis.call("HDEL", key.names, name)
    end
    redis.call("ZREM", key.heartbeats, worker)
    redis.call("ZREM", key.joined, worker)
    redis.call("UNLINK", key.worker(worker), key.claims(worker), key.inbox(worker), key.nudges(worker))
end

-- Returns up to `max_workers` workers that joined at `from` (µs) or later, and the start of the next page, or nil for
-- the last page. A page can begin with the last worker of the previous page. Invalid worker names are omitted.
function workers.joined(from, max_workers)
    local page = redis.call("ZRANGEBYSCORE", key.joined, from, "+inf", "WITHSCORES", "LIMIT", 0, max_workers)
    local names = {}
    for i = 1, #page, 2 do
        names[#names + 1] = corrupt.is_word(page[i]) and page[i] or nil
    end
    if #page < 2 * max_workers then
        return names
    end
    local last = page[#page]
    return names, last ~= from and last or call.text(tonumber(last) + 1)
end

-- dead_workers: reclaims the jobs of a worker that leaves or is dead. A dead worker was silent until a `tick`, or its
-- guard saw it end and invoked `recover`.

-- Returns ids of jobs that `worker` holds: all of them, or more than `max_jobs`.
local function some_jobs_of(worker, max_jobs)
    local ids, is_listed, cursor = {}, {}, "0"
    repeat
        local page = redis.call("HSCAN", key.claims(worker), cursor, "COUNT", max_jobs + 1)
        cursor = page[1]
        for nth = 1, #page[2], 2 do
            local id = page[2][nth]
            if not is_listed[id] then -- HSCAN can return a field twice while the hash is resized
                ids[#ids + 1], is_listed[id] = id, true
            end
        end
    until cursor == "0" or #ids > max_jobs
    return ids
end

-- Returns ids of jobs that a dead worker held: all of them, or more than `max_jobs`. The second value is the number of
-- prefetched jobs. They are first in the list, because they were claimed last. They had not started, so they cannot
-- have killed the worker.
local function some_jobs_and_prefetched(worker, max_jobs)
    local row = free_slots.row(worker)
    local prefetched = row[free_slots.PROFILE] and -free_slots.remaining(worker, row) or 0
    if prefetched <= 0 then
        return some_jobs_of(worker, max_jobs), 0
    end
    local claimed = redis.call("HGETALL", key.claims(worker))
    local ids, fences = flat.members(claimed), flat.values(claimed)
    table.sort(ids, function(first_id, second_id)
        return (tonumber(fences[first_id]) or 0) > (tonumber(fences[second_id]) or 0)
    end)
    return ids, prefetched
end

-- Reclaims up to `max_jobs` jobs of `worker`, and adds the types of pending ones to `types`. If the worker is dead,
-- this counts as a delivery of jobs that had a slot. A worker without claims is removed. Returns the number of
-- reclaimed jobs, and true if the worker was removed. `death`: "died" or "silent" (`requeue_log`); nil for a worker
-- that leaves.
function dead_workers.take_back(worker, max_jobs, types, settings, death)
    workers.close(worker)
    local ids, prefetched
    if death then
        -- The worker stays dead until later invocations have reclaimed all its jobs: a late heartbeat cannot change
        -- that.
        redis.call("ZADD", key.heartbeats, protocol.GIVEN_UP_US, worker)
        ids, prefetched = some_jobs_and_prefetched(worker, max_jobs)
    else
        ids = some_jobs_of(worker, max_jobs)
    end
    local number = math.min(#ids, max_jobs)
    for nth = 1, number do
        local how = death and nth > prefetched and "unsettled" or "returned"
        types[#types + 1] = requeue.requeue(worker, ids[nth], how, settings, nil, death)
    end
    if #ids <= max_jobs then
        workers.remove(worker)
    end
    return number, #ids <= max_jobs
end
