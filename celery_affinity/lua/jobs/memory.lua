-- memory: for how long a job is known that ended without a slot, or with others (`affinity_keep`), and the index of the
-- jobs that are known for over a minute. A release, by which most jobs end, has that from its worker's row.

-- Has job `id`, which has ended, be found by its task alone, and forgotten in time. A batch is not in the index: its
-- calls are.
function memory.keep(id)
    local keep_us = tonumber(redis.call("HGET", key.settings, "keep_us")) or 0
    local seconds = math.max(protocol.ENDED_KEPT_S, math.floor(keep_us / 1000000))
    find_by.remove(id, seconds)
    redis.call("EXPIRE", key.job(id), seconds)
    if seconds > protocol.ENDED_KEPT_S and marks.of(id) ~= protocol.BATCH then
        redis.call("ZADD", key.ended, call.now, id)
    end
end

-- Takes jobs out of the index that are too old, or too many; these are known for another minute. RETURNS whether there
-- may be more.
function memory.trim(settings)
    local number = redis.call("ZCARD", key.ended)
    local since = call.text(call.now_us - settings.keep_us)
    local gone = number == 0 and {}
        or redis.call("ZRANGEBYSCORE", key.ended, "-inf", since, "LIMIT", 0, protocol.MOST_TRIMMED)
    local over = math.min(number - settings.keep_max, protocol.MOST_TRIMMED)
    if #gone < over then
        gone = redis.call("ZRANGE", key.ended, 0, over - 1)
        for _, id in ipairs(gone) do
            find_by.remove(id, protocol.ENDED_KEPT_S)
            redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
        end
    end
    if #gone > 0 then
        redis.call("ZREM", key.ended, unpack(gone))
    end
    return #gone == protocol.MOST_TRIMMED
end
