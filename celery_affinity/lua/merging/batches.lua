-- batches: what becomes of a batch and its calls when a worker has run it, or gives it back. One of the calls, the
-- primary, is run: the worker has its message, and tells its caller. The others get the same result, from the worker or
-- from a process that asks for batches whose calls do not know (key `untold`).

-- RETURNS whether `fence` lets a process tell the calls of a batch their result: the number of the worker's claim; ""
-- for a batch that is untold.
function batches.is_its_own(batch, fence)
    if id_suffix.of(batch) ~= protocol.BATCH then
        return false
    elseif fence == "" then
        return redis.call("ZSCORE", key.untold, batch) ~= false
    end
    local state, own_fence = unpack(redis.call("HMGET", key.job(batch), "state", "fence"))
    return state == "claimed" and own_fence == fence
end

-- Ends a call of `batch` whose caller knows the result, or is told by the worker.
function batches.end_caller(id, batch, state, why)
    batch_calls.remove(id, batch)
    redis.call("HSET", key.job(id), "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    ends.mark_reported(id)
end

-- Has the calls of a batch wait again that its run did not end; others do not join them. RETURNS the batch's type.
local function go_on(batch, known)
    local type, lane, enqueued, rank =
        unpack(redis.call("HMGET", key.job(batch), "type", "lane", "enqueued", "rank"))
    redis.call("HDEL", key.job(batch), "worker", "fence", "by", "started", "primary", "acked")
    redis.call("HSET", key.job(batch), "state", "pending", "task", "")
    batch_calls.close(batch, type, known.rules, known.name)
    hooks.wait(batch, type, lane, lanes.order(enqueued, rank))
    return type
end

-- Counts a run of several calls, and these calls: those of a type as long as workers serve it.
local function count(batch, type)
    local said = string.match(redis.call("HGET", key.job(batch), "size") or "", "^%d+$")
    local calls = math.min(tonumber(said) or 0, 1e9)
    if calls < 2 then
        return
    end
    local size = 2
    while size < calls and size < protocol.LARGEST_BATCH_COUNTED do
        size = 2 * size
    end
    redis.call("HINCRBY", key.counters, protocol.BATCH_SIZE .. (calls <= size and size or "more"), 1)
    redis.call("HINCRBY", key.counters, "batched", calls)
    if redis.call("HEXISTS", key.capacity, type) == 1 then
        redis.call("HINCRBY", key.batched, type, calls)
    end
end

-- The worker says that the run of `batch` has ended, and how: ends the primary, and decides what becomes of the others.
-- `known`: what `claims.remove` returned. `why`: in words, "" for nothing.
-- RETURNS the type, if the batch is pending again.
function batches.release(batch, known, how, why)
    local is_without_result = how == "revoked" or how == "expired" -- of the primary alone, before it ran
    local state, its_why = ends.STATE_AFTER[how] or "done", ends.STATE_AFTER[how] and why or ""
    if not known.type and batches.make_again(batch) then -- somebody deleted the row: all calls are to be told
        redis.call("HSET", key.job(batch), "state", state, "ended", call.now)
        redis.call("ZADD", key.untold, call.now, batch)
        return nil
    end
    if how == "returned" then -- the run was stopped for another call than the primary, which was revoked
        return go_on(batch, known)
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    if primary then
        batches.end_caller(primary, batch, state, its_why)
    end
    local has_others = redis.call("EXISTS", key.callers(batch)) == 1
    if has_others and is_without_result then
        return go_on(batch, known)
    end
    redis.call("HDEL", key.job(batch), "primary")
    known.ran, known.is_doubtful = primary, known.is_doubtful or not primary
    if not is_without_result then
        count(batch, known.type or "")
    end
    ends.on_worker(batch, known, state, its_why, has_others)
    if has_others then
        redis.call("ZADD", key.untold, call.now, batch)
    end
    return nil
end

-- A worker gives `batch` back without a result: ends the primary, if it was revoked or has expired meanwhile. RETURNS
-- "gone" if no call is left. One that `is_acked` is lost in any case.
function batches.meanwhile(batch, is_acked)
    if is_acked then
        return nil
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    redis.call("HDEL", key.job(batch), "primary")
    local ended = primary and ends.meanwhile(primary)
    if ended then
        batch_calls.remove(primary, batch)
        ends.record(primary, ended)
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        return nil
    end
    batch_calls.vanish(batch)
    return "gone"
end

-- A batch becomes a dead letter: all its callers are to be told, but for one whom the worker tells.
function batches.dead_letter(batch, reason, row)
    batch_calls.close(batch, row.type, row.rules, row.name)
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
    return true
end

-- Makes the row of a batch again, but for its state, from the first of its calls that says enough: somebody deleted or
-- overwrote the row. Nobody knows which call was run; no further call joins.
-- RETURNS type, lane and enqueue time; nil if no call says them.
function batches.make_again(batch)
    local is_there = redis.call("TYPE", key.callers(batch)).ok == "zset"
    for _, id in ipairs(is_there and redis.call("ZRANGE", key.callers(batch), 0, protocol.MOST_MOVES - 1) or {}) do
        local row = redis.pcall("HMGET", key.job(id), "type", "lane", "enqueued", "name", "rules")
        local type, lane, enqueued, name, rules = unpack(row)
        if not row.err and corrupt.can_wait(type, lane, enqueued, "0") then
            redis.call("HDEL", key.job(batch), "primary", "worker", "fence", "by", "started", "acked", "bytes",
                "deliveries", "rank")
            local calls = redis.call("ZCARD", key.callers(batch))
            merge.write_batch(batch, type, lane, enqueued, name, rules, calls)
            return type, lane, enqueued
        end
    end
    return nil
end

-- Deletes `most` calls of a batch that is deleted. RETURNS whether none is left. Else the batch stays untold, and each
-- `told` of it deletes further ones.
function batches.forget_some(batch, most)
    for _, its_calls in ipairs({ key.told_callers(batch), key.callers(batch) }) do
        local ids = redis.call("ZRANGE", its_calls, 0, most - 1)
        for _, id in ipairs(ids) do
            job_index.remove(id, 0)
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

-- Puts the calls of a dead batch back to waiting (`replay`), without stamps and expiry, which would end the calls.
-- Handles `most` calls. RETURNS whether none is left, and how many it handled.
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
        job_index.fade(id, stamps, expires)
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
