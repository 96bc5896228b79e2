-- batches: handles a batch and its calls after a worker has run or returned it. One of the calls, the primary, is run:
-- the worker has its message, and reports it. The other calls get the same result from the worker, or from a process
-- that reports unreported batches (key `unreported`).

-- Returns true if `fence` permits a process to report results to the calls of a batch. `fence`: fencing token of the
-- worker's claim, or "" for an unreported batch.
function batches.may_report(batch, fence)
    if id_suffix.of(batch) ~= protocol.BATCH then
        return false
    elseif fence == "" then
        return redis.call("ZSCORE", key.unreported, batch) ~= false
    end
    local state, own_fence = unpack(redis.call("HMGET", key.job(batch), "state", "fence"))
    return state == "claimed" and own_fence == fence
end

-- Ends a call of `batch` that has received the result, or will receive it from the worker.
function batches.end_caller(id, batch, state, why)
    batch_calls.remove(id, batch)
    redis.call("HSET", key.job(id), "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    ends.mark_reported(id)
end

-- Requeues a batch with the calls that its run did not end; no other calls join them. Returns the batch's type.
local function requeue_rest(batch, known)
    local type, lane, enqueued, rank, head, due =
        unpack(redis.call("HMGET", key.job(batch), "type", "lane", "enqueued", "rank", "head", "due"))
    redis.call("HDEL", key.job(batch), "worker", "fence", "by", "started", "primary", "acked")
    redis.call("HSET", key.job(batch), "state", "pending", "task", "")
    batch_calls.close(batch, type, known.rules, known.name)
    due_times.add(batch, due)
    hooks.wait(batch, type, lane, lanes.order(enqueued, rank, head))
    return type
end

-- Counts a run of several calls, and the calls. The calls are also counted per type while workers serve the type.
local function count_run(batch, type)
    local size_field = string.match(redis.call("HGET", key.job(batch), "size") or "", "^%d+$")
    local calls = math.min(tonumber(size_field) or 0, 1e9)
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

-- Handles the end of a run, as reported by the worker. Ends the primary, and requeues or ends the other calls. `known`:
-- result of `claims.remove`. `why`: reason, or "".
-- Returns the type if the batch is pending again.
function batches.release(batch, known, how, why)
    local is_without_result = how == "revoked" or how == "expired" -- of the primary only, before it ran
    local state, reason = ends.STATE_AFTER[how] or "done", ends.STATE_AFTER[how] and why or ""
    if not known.type and batches.rebuild(batch) then -- another client deleted the hash: all calls are unreported
        redis.call("HSET", key.job(batch), "state", state, "ended", call.now)
        redis.call("ZADD", key.unreported, call.now, batch)
        return nil
    end
    if how == "returned" then -- the run was stopped because another call was revoked
        return requeue_rest(batch, known)
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    if primary then
        batches.end_caller(primary, batch, state, reason)
    end
    local has_others = redis.call("EXISTS", key.callers(batch)) == 1
    if has_others and is_without_result then
        return requeue_rest(batch, known)
    end
    redis.call("HDEL", key.job(batch), "primary")
    known.ran, known.is_doubtful = primary, known.is_doubtful or not primary
    if not is_without_result then
        count_run(batch, known.type or "")
    end
    ends.on_worker(batch, known, state, reason, has_others)
    if has_others then
        redis.call("ZADD", key.unreported, call.now, batch)
    end
    return nil
end

-- Handles a batch that a worker requeues without a result: ends the primary if it was revoked or expired during the
-- run. Returns "gone" if no call remains. If `is_acked`, the batch is lost in any case.
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

-- Dead-letters a batch: its calls become unreported, except a primary that the worker reports.
function batches.dead_letter(batch, reason, row)
    batch_calls.close(batch, row.type, row.rules, row.name)
    local primary, type = unpack(redis.call("HMGET", key.job(batch), "primary", "type"))
    if not type then
        batches.rebuild(batch)
    end
    redis.call("HDEL", key.job(batch), "primary")
    local is_reported_by_worker = reason == "rejected" or reason == "failed"
    local number = is_reported_by_worker and primary and redis.call("ZSCORE", key.callers(batch), primary)
    if number then
        redis.call("ZREM", key.callers(batch), primary)
        redis.call("ZADD", key.reported_calls(batch), number, primary)
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        redis.call("ZADD", key.unreported, call.now, batch)
    end
    return true
end

-- Rebuilds the deleted or overwritten hash of a batch, except its state, from its first call with a valid hash. The
-- rebuilt hash does not name the primary. No other calls join the batch.
-- Returns type, lane and enqueue time, or nil if no call has them.
function batches.rebuild(batch)
    local exists = redis.call("TYPE", key.callers(batch)).ok == "zset"
    for _, id in ipairs(exists and redis.call("ZRANGE", key.callers(batch), 0, protocol.MAX_MOVES - 1) or {}) do
        local row = redis.pcall("HMGET", key.job(id), "type", "lane", "enqueued", "name", "rules")
        local type, lane, enqueued, name, rules = unpack(row)
        if not row.err and corrupt.can_wait(type, lane, enqueued, "0") then
            redis.call("HDEL", key.job(batch), "primary", "worker", "fence", "by", "started", "acked", "bytes",
                "deliveries", "rank", "head", "due")
            local calls = redis.call("ZCARD", key.callers(batch))
            merge.write_batch(batch, type, lane, enqueued, name, rules, calls)
            return type, lane, enqueued
        end
    end
    return nil
end

-- Deletes up to `max_calls` calls of a deleted batch. Returns true if no calls remain. Otherwise the batch stays
-- unreported, and each `ack_report` deletes further calls.
function batches.forget_some(batch, max_calls)
    for _, calls_key in ipairs({ key.reported_calls(batch), key.callers(batch) }) do
        local ids = redis.call("ZRANGE", calls_key, 0, max_calls - 1)
        for _, id in ipairs(ids) do
            job_index.remove(id, 0)
            redis.call("UNLINK", key.job(id), key.message(id))
        end
        redis.call("ZREMRANGEBYRANK", calls_key, 0, #ids - 1)
        max_calls = max_calls - #ids
    end
    if redis.call("EXISTS", key.callers(batch), key.reported_calls(batch)) == 0 then
        return true
    end
    if redis.call("EXISTS", key.reported_calls(batch)) == 0 then
        redis.call("RENAME", key.callers(batch), key.reported_calls(batch)) -- the calls need no report
    end
    redis.call("HSET", key.job(batch), "state", "dead", "reason", "deleted", "ended", call.now)
    redis.call("ZADD", key.unreported, call.now, batch)
    return false
end

-- Prepares the calls of a dead batch for a replay. Removes stamps and expiry, because they would end the calls. Handles
-- up to `max_calls` calls. Returns true if no calls remain, and the number of handled calls.
function batches.wait_again(batch, max_calls)
    local reported = redis.call("ZPOPMIN", key.reported_calls(batch), max_calls)
    for nth = 1, #reported, 2 do
        redis.call("ZADD", key.callers(batch), reported[nth + 1], reported[nth])
    end
    local rest = max_calls - #reported / 2
    local after = redis.call("HGET", key.job(batch), "replayed") or 0
    local ids = redis.call("ZRANGEBYSCORE", key.callers(batch), "(" .. after, "+inf", "WITHSCORES", "LIMIT", 0, rest)
    for nth = 1, #ids, 2 do
        local id = ids[nth]
        local stamps, expires, claimed, head, due =
            unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "claimed", "head", "due"))
        local is_unneeded = claimed == "" and not (head or due)
        job_index.fade(id, stamps, expires)
        redis.call("HDEL", key.job(id), "stamps", "expires", "moved", is_unneeded and "claimed" or "expires")
        after = ids[nth + 1]
    end
    if #ids == 2 * rest then
        redis.call("HSET", key.job(batch), "replayed", after)
        return false, max_calls
    end
    redis.call("HDEL", key.job(batch), "replayed")
    redis.call("HSET", key.job(batch), "task", "")
    return true, (#reported + #ids) / 2
end
