-- leave_due: an app does not know the task of a recurring call that was handed out to it. Others may have it at once.
-- RETURNS 1 if the call is due still.
-- Cost: O(log n) in recurring calls.
function arrows.leave_due(ARGV)
    local name = ARGV[1]
    local app = ARGV[2] -- encoded

    local due, is_suspended, left, left_at =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "suspended", "left", "left_at"))
    if is_suspended or (tonumber(due) or math.huge) > call.now_us then
        return 0
    end
    local since_us = call.now_us - (tonumber(left_at) or 0)
    if not left or since_us < 0 or since_us >= protocol.OTHERS_HAVE_US then
        left = app
    elseif not string.find(" " .. left .. " ", " " .. app .. " ", 1, true) then
        left = left .. " " .. app
    end
    redis.call("HSET", key.recurring_call(name), "left", left, "left_at", call.now)
    redis.call("ZADD", key.recurring, call.now, name)
    return 1
end
