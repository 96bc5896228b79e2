-- due_recurring: assigns a due recurring call to a process. The process fires the call (`fire_recurring`), or declines
-- it (`decline_recurring`). Otherwise the call is assigned again after a delay, because a process can hang.
--
-- Returns {name, due, task name, signature}, or {} if no call is due. due: argument for `fire_recurring`, which checks
-- that the call is still due.
-- Cost: at most MOST_DUE_LOOKED_AT recurring calls, and one signature.

-- Returns true if the interval of a call begins at the end of its runs (`since`), and the call's last job has not
-- ended.
local function is_under_way(since, made)
    local state = since == "end" and made and redis.call("HGET", key.job(made), "state")
    return state == "scheduled" or state == "pending" or state == "merged" or state == "claimed"
end

function functions.due_recurring(ARGV)
    local again_us = tonumber(ARGV[1]) -- delay until the call is assigned again
    local app = ARGV[2] -- encoded name of the calling app; it gets its declined calls again only after a while

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
