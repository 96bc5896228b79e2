-- batches: a batch that a worker held: what becomes of its calls.

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
    redis.call("HSET", key.job(id), "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    memory.keep(id)
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
    local primary, type = unpack(redis.call("HMGET", key.job(batch), "primary", "type"))
    if not type then
        batches.make_again(batch)
    end
    redis.call("HDEL", key.job(batch), "primary")
    local is_told = reason == "rejected" or reason == "failed"
    local number = is_told and primary and redis.call("ZSCORE", key.callers(batch), primary)
    if number then
        redis.call("ZREM", key.callers(batch), primary)
        redis.call("ZADD", key.told_callers(batch), number, primary)
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        redis.call("ZADD", key.untold, call.now, batch)
    end
end

-- Makes the row of a batch again, but for its state, from what the first calls say: somebody deleted the row, or
-- overwrote it. Which call was run is not known, and no further call joins. RETURNS type, lane and enqueue time; nil if
-- there is no call.
function batches.make_again(batch)
    local is_there = redis.call("TYPE", key.callers(batch)).ok == "zset"
    for _, id in ipairs(is_there and redis.call("ZRANGE", key.callers(batch), 0, protocol.MOST_MOVES - 1) or {}) do
        local row = redis.pcall("HMGET", key.job(id), "type", "lane", "enqueued", "name", "rules")
        local type, lane, enqueued, name, rules = unpack(row)
        if not row.err and spoiled.can_wait(type, lane, enqueued, "0") then
            redis.call("HDEL", key.job(batch), "primary", "worker", "fence", "by", "started", "acked", "bytes")
            redis.call("HSET", key.job(batch), "type", type, "lane", lane, "enqueued", enqueued, "deliveries", 0,
                "task", "", "name", name or "", "rules", rules or "",
                "calls", redis.call("ZCARD", key.callers(batch)))
            return type, lane, enqueued
        end
    end
    return nil
end

-- Deletes `most` calls of a batch that goes. RETURNS whether that was all; if not, who tells ends deletes the others.
function batches.forget_some(batch, most)
    for _, its_calls in ipairs({ key.told_callers(batch), key.callers(batch) }) do
        local ids = redis.call("ZRANGE", its_calls, 0, most - 1)
        for _, id in ipairs(ids) do
            find_by.remove(id, 0)
            redis.call("UNLINK", key.job(id), key.message(id))
        end
        redis.call("ZREMRANGEBYRANK", its_calls, 0, #ids - 1)
        most = most - #ids
    end
    if redis.call("EXISTS", key.callers(batch), key.told_callers(batch)) == 0 then
        return true
    end
    if redis.call("EXISTS", key.told_callers(batch)) == 0 then
        redis.call("RENAME", key.callers(batch), key.told_callers(batch)) -- nobody is to be told
    end
    redis.call("HSET", key.job(batch), "state", "dead", "reason", "deleted", "ended", call.now)
    redis.call("ZADD", key.untold, call.now, batch)
    return false
end

-- All calls of a dead batch are to wait again, and nothing ends them that would have. Looks at `most` calls, the first
-- ones that no earlier call looked at. RETURNS whether these were all, and how many it looked at.
function batches.wait_again(batch, most)
    local told = redis.call("ZPOPMIN", key.told_callers(batch), most)
    for nth = 1, #told, 2 do
        redis.call("ZADD", key.callers(batch), told[nth + 1], told[nth])
    end
    local left = most - #told / 2
    local after = redis.call("HGET", key.job(batch), "replayed") or 0
    local ids = redis.call("ZRANGEBYSCORE", key.callers(batch), "(" .. after, "+inf", "WITHSCORES", "LIMIT", 0, left)
    for nth = 1, #ids, 2 do
        local id = ids[nth]
        local stamps, expires, claimed = unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "claimed"))
        find_by.fade(id, stamps, expires)
        redis.call("HDEL", key.job(id), "stamps", "expires", "moved", claimed == "" and "claimed" or "expires")
        after = ids[nth + 1]
    end
    if #ids == 2 * left then
        redis.call("HSET", key.job(batch), "replayed", after)
        return false, most
    end
    redis.call("HDEL", key.job(batch), "replayed")
    redis.call("HSET", key.job(batch), "task", "")
    return true, (#told + #ids) / 2
end
