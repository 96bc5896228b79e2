-- workers: which workers are alive, with which types and how many slots. Workers that serve the same types have one
-- profile; so arrows that look for free slots look at profiles (`free_slots`).

-- RETURNS the words of a text as a list; nil has none.
function workers.split(types)
    local list = {}
    for type in string.gmatch(types or "", "%S+") do
        list[#list + 1] = type
    end
    return list
end

-- Writes into a worker's row, which a release reads anyway, how long jobs are known that end on the worker, s, if that
-- is more than a minute; and whether those that fail become dead letters.
function workers.say_what_is_kept(worker)
    local keep_us, keeps_failed = unpack(redis.call("HMGET", key.settings, "keep_us", "keep_failed"))
    local keep_s = math.floor((tonumber(keep_us) or 0) / 1000000)
    local words = (keep_s > protocol.ENDED_KEPT_S and keep_s or "") .. (keeps_failed == "1" and " failed" or "")
    hash.write(key.worker(worker), "keeps", words ~= "" and words)
end

function workers.types_of(worker)
    return workers.split(redis.call("HGET", key.worker(worker), "types"))
end

-- Notes in the metrics of `type` whether live workers serve the type. Only then they have field `published`, by which a
-- publish tells (`enter`); without workers they are kept for a while, and field `published before` has the number.
function workers.note_served(type, is_served)
    local its = key.metrics(type)
    local from, to = "published", "published before"
    local are_there
    if is_served then
        from, to = to, from
        are_there = redis.call("PERSIST", its) == 1
    else
        are_there = redis.call("EXPIRE", its, protocol.METRICS_KEPT_S) == 1
    end
    local number = are_there and redis.call("HGET", its, from)
    if number then
        redis.call("HSET", its, to, number)
        redis.call("HDEL", its, from)
    end
end

-- Adds `by` slots to the sums of a profile and of its types, of which there may be very many.
local function change_slots(profile, types, by)
    redis.call("HINCRBY", key.slots, profile, by)
    if by < 0 and redis.call("HGET", key.heads, "!") == protocol.HAS_RESERVES then
        for _, type in ipairs(types) do
            call.to_fill[type] = true -- a share of fewer live slots is a smaller reserve
        end
    end
    local fields, gone = {}, {}
    for nth, slots in ipairs(#types > 0 and lanes.fields(key.capacity, types) or {}) do
        local type, sum = types[nth], tonumber(slots or 0)
        if not sum then
            error("spoiled capacity of type " .. type)
        elseif sum + by > 0 then
            fields[#fields + 1], fields[#fields + 2] = type, sum + by
            if not slots then
                workers.note_served(type, true)
            end
        else
            gone[#gone + 1] = type
            workers.note_served(type, false)
        end
    end
    chunked.call("HSET", key.capacity, fields)
    chunked.call("HDEL", key.capacity, gone)
    settings_in_force.renew_for_claims()
end

-- Adds a worker, whose row has profile and slots, to its profile, which comes with its first worker.
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

-- Lets no job be placed on the worker any more; the worker keeps the jobs that it holds.
function workers.close(worker)
    redis.call("HSET", key.worker(worker), "accepting", "0")
    free_slots.recount(worker)
end

-- Lets no job be placed on the worker until its event loop, which stands still, runs again (`resume`).
function workers.stall(worker)
    redis.call("HSET", key.worker(worker), "stalled", "1")
    free_slots.recount(worker)
end

-- Lets jobs be placed on a worker that was stalled. The caller recounts the worker's free slots. RETURNS whether it was
-- stalled.
function workers.resume(worker)
    return redis.call("HDEL", key.worker(worker), "stalled") == 1
end

-- Removes a worker from its profile, which goes with its last worker.
function workers.detach(worker)
    workers.close(worker)
    local profile, slots = unpack(redis.call("HMGET", key.worker(worker), "profile", "slots"))
    if not profile then
        return -- somebody deleted the worker's row
    end
    local types = workers.types_of(worker)
    change_slots(profile, types, 0 - tonumber(slots)) -- the negative of 0 would be "-0", no integer for Redis 7.0
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
                redis.call("HDEL", key.ahead, type)
            end
        end
    end
end

-- Gives a worker another number of slots. The caller recounts its free slots.
function workers.resize(worker, now_slots)
    local slots, profile = unpack(redis.call("HMGET", key.worker(worker), "slots", "profile"))
    local was = tonumber(slots)
    if was ~= now_slots then
        change_slots(profile, workers.types_of(worker), now_slots - was)
        redis.call("HSET", key.worker(worker), "slots", now_slots)
    end
end

-- Has one worker tick now: puts a sign, which is no job, into its inbox. The workers that joined first tick for the
-- fleet; a worker that takes no jobs gets no sign.
function workers.have_one_tick()
    for _, worker in ipairs(redis.call("ZRANGE", key.joined, 0, protocol.TICKERS - 1)) do
        local accepting, stalled = unpack(redis.call("HMGET", key.worker(worker), "accepting", "stalled"))
        if accepting == "1" and not stalled then
            redis.call("LPUSH", key.inbox(worker), "\n" .. protocol.TICK_SIGN)
            return
        end
    end
end

-- Something is due `in_us` from now: `member` of the sorted set `name`. Has one worker tick now if the next tick would
-- come too late, and nothing is due before.
function workers.tick_in_time(in_us, name, member)
    if in_us < protocol.TICK_US and redis.call("ZRANGE", name, 0, 0)[1] == member then
        workers.have_one_tick()
    end
end

-- RETURNS whether a worker is to tick: it is one of the first, or the last tick is old.
function workers.is_ticker(worker)
    local ticked = tonumber(redis.call("HGET", key.clock, "ticked")) or 0
    local rank = redis.call("ZRANK", key.joined, worker)
    return (rank and rank < protocol.TICKERS) or call.now_us - ticked > protocol.TICKED_LATELY_US
end

-- Forgets a worker that holds nothing any more.
function workers.remove(worker)
    workers.detach(worker)
    local name, holds_hints = unpack(redis.call("HMGET", key.worker(worker), "name", "hints"))
    if holds_hints then
        hooks.worker_goes(worker)
    end
    if name and redis.call("HGET", key.names, name) == worker then
        redis.call("HDEL", key.names, name)
    end
    redis.call("ZREM", key.heartbeats, worker)
    redis.call("ZREM", key.joined, worker)
    redis.call("UNLINK", key.worker(worker), key.claims(worker), key.inbox(worker), key.nudges(worker))
end

-- RETURNS at most `most` workers that joined at `from`, µs, or later, and where the next page begins; nil if there is
-- none. A page may begin with the worker that ended the one before. Members that are no words are left out.
function workers.joined(from, most)
    local page = redis.call("ZRANGEBYSCORE", key.joined, from, "+inf", "WITHSCORES", "LIMIT", 0, most)
    local found = {}
    for i = 1, #page, 2 do
        found[#found + 1] = corrupt.is_word(page[i]) and page[i] or nil
    end
    if #page < 2 * most then
        return found
    end
    local last = page[#page]
    return found, last ~= from and last or call.text(tonumber(last) + 1)
end
