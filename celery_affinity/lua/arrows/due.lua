-- due: a recurring call that is to be made now is handed out. If it is not made (`fire`) in time, it is handed out to
-- another process: the first one may hang.
-- RETURNS {name, due, task name, signature}; due: the time by which `fire` knows that the call is still to be made. {}
-- if none is due.
-- Cost: at most MOST_DUE_LOOKED_AT recurring calls, and one signature.
function arrows.due(ARGV)
    local again_us = tonumber(ARGV[1]) -- time after which it is handed out again
    local app = ARGV[2] -- the app that asks, encoded: what it has left to others it gets again only after a while

    -- `left`: the apps that have left a call to others, separated by blanks, and when the last one did.
    local function is_left(left, left_at)
        local since_us = call.now_us - (tonumber(left_at) or 0)
        return since_us >= 0 and since_us < protocol.OTHERS_HAVE_US
            and string.find(" " .. (left or "") .. " ", " " .. app .. " ", 1, true)
    end

    -- RETURNS whether the last job of a call that counts from the end of its runs has not come to its own yet.
    local function is_under_way(since, made)
        local state = since == "end" and made and redis.call("HGET", key.job(made), "state")
        return state == "scheduled" or state == "pending" or state == "merged" or state == "claimed"
    end

    for _, name in ipairs(redis.call("ZRANGEBYSCORE", key.recurring, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_DUE_LOOKED_AT)) do
        local due, task, left, left_at, since, made =
            unpack(redis.call("HMGET", key.recurring_call(name), "due", "task", "left", "left_at", "since", "made"))
        if not (due and task) then
            redis.call("ZREM", key.recurring, name)
            spoiled.record("recurring call " .. name .. ", of which only the time was left")
        elseif is_under_way(since, made) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + protocol.TICK_US), name)
        elseif not is_left(left, left_at) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + again_us), name)
            return { name, due, task, redis.call("GET", key.signature(name)) or "" }
        end
    end
    return {}
end
