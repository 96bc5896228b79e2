-- due_recurring: a recurring call that is to be made now is handed out to a process, which makes it (`fire`), or leaves it to
-- another app (`leave_due`). After a while without either it is handed out again: the process may hang.
-- RETURNS {name, due, task name, signature}; due: the time by which `fire` knows that the call is still to be made. {}
-- if none is due.
-- Cost: at most MOST_DUE_LOOKED_AT recurring calls, and one signature.

-- RETURNS whether the last job of a call that counts from the end of its runs has not come to its own yet.
local function is_under_way(since, made)
    local state = since == "end" and made and redis.call("HGET", key.job(made), "state")
    return state == "scheduled" or state == "pending" or state == "merged" or state == "claimed"
end

function functions.due_recurring(ARGV)
    local again_us = tonumber(ARGV[1]) -- time after which it is handed out again
    local app = ARGV[2] -- the app that asks, encoded: a call that it has left to others it gets again after a while

    for _, name in ipairs(redis.call("ZRANGEBYSCORE", key.recurring, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_DUE_LOOKED_AT)) do
        local due, task, left, left_at, since, made =
            unpack(redis.call("HMGET", key.recurring_call(name), "due", "task", "left", "left_at", "since", "made"))
        if not (due and task) then
            redis.call("ZREM", key.recurring, name)
            corrupt.record("recurring call " .. name .. ", of which only the time was left")
        elseif is_under_way(since, made) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + protocol.TICK_US), name)
        elseif not texts.has_word(recurring.left_to_others(left, left_at), app) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + again_us), name)
            return { name, due, task, redis.call("GET", key.signature(name)) or "" }
        end
    end
    return {}
end
