-- pause_recurring: suspends or resumes a recurring call. A suspended call is kept, but is never due. A resumed call
-- keeps its due time, and is due immediately if that time has passed.
--
-- Returns 1 if the call exists, or 0.
-- Cost: O(log n) in recurring calls.
function functions.pause_recurring(ARGV)
    local name = ARGV[1]
    local suspended = ARGV[2] == "1" -- false: resume

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
