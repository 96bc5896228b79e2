-- recurring_recheck: the times of recurring calls, after the server's clock was set back.

-- Has nothing be due later than if it were put off now. `from`: position of the first recurring call to look at.
-- RETURNS whether there are more, with which the next tick goes on.
function recurring_recheck.recheck(from)
    local found = redis.call("ZRANGE", key.recurring, from, from + protocol.MOST_RECHECKED - 1, "WITHSCORES")
    for nth = 1, #found, 2 do
        local name, at_us = found[nth], tonumber(found[nth + 1])
        local due, stale_us = unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale"))
        local latest_us = call.now_us + (tonumber(stale_us) or math.huge)
        if (tonumber(due) or 0) > latest_us then
            redis.call("HSET", key.recurring_call(name), "due", call.text(latest_us))
        end
        if at_us > latest_us and at_us ~= math.huge then -- else it is suspended
            redis.call("ZADD", key.recurring, call.text(latest_us), name)
        end
    end
    local has_more = #found == 2 * protocol.MOST_RECHECKED
    if has_more then -- no call has moved to a later position
        redis.call("HSET", key.clock, "recheck", from + protocol.MOST_RECHECKED)
    elseif from > 0 then
        redis.call("HDEL", key.clock, "recheck")
    end
    return has_more
end
