-- ended_trim: jobs that have ended leave the index (`ended`) when they are forgotten, or are too many.
-- @include base/clock.lua
-- @include jobs/find_by.lua

-- Takes jobs out of the index that are too old, or too many; these are known for another minute. RETURNS whether there
-- may be more.
local function trim_ended(settings)
    local number = redis.call("ZCARD", key.ended)
    local since = clock.text(clock.now_us - settings.keep_us)
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
