-- pause_recurring: a recurring call is kept, and never due; or it is due again as before, at once if that time has come.
-- RETURNS 1 if there is such a call.
-- Cost: O(log n) in recurring calls.
function functions.pause_recurring(ARGV)
    local name = ARGV[1]
    local suspended = ARGV[2] == "1" -- if not, it goes on

    local due, is_suspended, stale = unpack(redis.call("HMGET", key.recurring_call(name), "due", "suspended", "stale"))
    if not stale then
        return 0
    end
    if suspended then
        redis.call("HSET", key.recurring_call(name), "suspended", 1)
        redis.call("ZADD", key.recurring, "inf", name)
    elseif is_suspended then
        redis.call("HDEL", key.recurring_call(name), "suspended")
        recurring.set_due(name, math.max(call.now_us, tonumber(due) or 0), false)
    end
    return 1
end
