-- decline_recurring: passes a due recurring call to other apps, because `app` does not define its task.
--
-- Returns 1 if the call is still due, or 0.
-- Cost: O(log n) in recurring calls.
function functions.decline_recurring(ARGV)
    local name = ARGV[1]
    local app = ARGV[2] -- encoded

    local due, is_suspended, left, left_at =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "suspended", "left", "left_at"))
    if is_suspended or (tonumber(due) or math.huge) > call.now_us then
        return 0
    end
    left = recurring.left_to_others(left, left_at)
    if not left then
        left = app
    elseif not texts.has_word(left, app) then
        left = left .. " " .. app
    end
    redis.call("HSET", key.recurring_call(name), "left", left, "left_at", call.now)
    redis.call("ZADD", key.recurring, call.now, name)
    return 1
end
