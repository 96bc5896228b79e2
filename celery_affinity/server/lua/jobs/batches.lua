-- batches: a batch that a worker held: what becomes of its calls.
-- @include base/clock.lua
-- @include jobs/find_by.lua
local batches = {}

-- RETURNS whether somebody tells the calls of a batch: the worker whose claim has the number `fence`; "": whoever tells
-- ends that no worker tells.
function batches.is_its_own(batch, fence)
    if marks.of(batch) ~= protocol.BATCH then
        return false
    elseif fence == "" then
        return redis.call("ZSCORE", key.untold, batch) ~= false
    end
    local state, own_fence = unpack(redis.call("HMGET", key.job(batch), "state", "fence"))
    return state == "claimed" and own_fence == fence
end

-- Records how a call ended whose caller knows, or is told by the worker.
function batches.end_caller(id, batch, state, why)
    callers.remove(id, batch)
    redis.call("UNLINK", key.message(id))
    find_by.remove(id, protocol.ENDED_KEPT_S)
    redis.call("HSET", key.job(id), "state", state, "ended", clock.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
end

-- `batch` comes back from its worker: ends the call that was run, if it is to end. RETURNS whether others are left.
function batches.meanwhile(batch)
    local primary = redis.call("HGET", key.job(batch), "primary")
    redis.call("HDEL", key.job(batch), "primary")
    local ended = primary and ends.meanwhile(primary)
    if ended then
        callers.remove(primary, batch)
        ends.record(primary, ended)
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        return true
    end
    callers.vanish(batch)
    return false
end

-- `batch` is dead: all of its callers are to be told, but for the one whom the worker tells.
function batches.bury(batch, reason)
    local primary = redis.call("HGET", key.job(batch), "primary")
    redis.call("HDEL", key.job(batch), "primary")
    local number = reason == "rejected" and primary and redis.call("ZSCORE", key.callers(batch), primary)
    if number then
        redis.call("ZREM", key.callers(batch), primary)
        redis.call("ZADD", key.told_callers(batch), number, primary)
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        redis.call("ZADD", key.untold, clock.now, batch)
    end
end

-- RETURNS all calls of a batch.
function batches.all_callers(batch)
    local ids = redis.call("ZRANGE", key.callers(batch), 0, -1)
    for _, id in ipairs(redis.call("ZRANGE", key.told_callers(batch), 0, -1)) do
        ids[#ids + 1] = id
    end
    return ids
end

-- All calls of a dead batch wait again, and nothing ends them that would have.
function batches.wait_again(batch)
    local told = redis.call("ZRANGE", key.told_callers(batch), 0, -1, "WITHSCORES")
    for nth = 1, #told, 2 do
        redis.call("ZADD", key.callers(batch), told[nth + 1], told[nth])
    end
    redis.call("UNLINK", key.told_callers(batch))
    redis.call("HSET", key.job(batch), "task", "")
    for _, id in ipairs(redis.call("ZRANGE", key.callers(batch), 0, -1)) do
        local stamps, expires, claimed = unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "claimed"))
        find_by.fade(id, stamps, expires)
        redis.call("HDEL", key.job(id), "stamps", "expires", claimed == "" and "claimed" or "expires")
    end
end
