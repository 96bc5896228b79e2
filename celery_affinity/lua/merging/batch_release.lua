-- batch_release: the run of a batch came to an end: for the call that was run, as its worker says; what of the others,
-- is decided here.

-- Has the other calls wait again; others do not join them. RETURNS their type; nil if the row was deleted.
local function go_on(batch, known)
    local type, lane, enqueued = unpack(redis.call("HMGET", key.job(batch), "type", "lane", "enqueued"))
    redis.call("HDEL", key.job(batch), "worker", "fence", "by", "started", "primary", "acked")
    redis.call("HSET", key.job(batch), "state", "pending", "task", "")
    callers.close(batch, type, known.rules, known.name)
    with_rules.wait(batch, type, lane, enqueued)
    return type
end

-- Counts a run of several calls, and these: those of a type for as long as workers serve it.
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

-- Records the end of a claim of `batch`, which was removed. `known`: what `claims.remove` returned.
-- RETURNS the type, if the batch is pending again.
function batch_release.record(batch, known, how, why)
    local is_without_result = how == "revoked" or how == "expired" -- the worker ended the call before
    local state, its_why = outcomes.ENDED[how] or "done", outcomes.ENDED[how] and why or ""
    if not known.type and batches.make_again(batch) then -- somebody deleted the row: all calls are to be told
        redis.call("HSET", key.job(batch), "state", state, "ended", call.now)
        redis.call("ZADD", key.untold, call.now, batch)
        return nil
    end
    if how == "returned" then -- the run was ended for one of the other calls, which is revoked
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
    finished.record(batch, known, state, its_why, has_others)
    if has_others then
        redis.call("ZADD", key.untold, call.now, batch)
    end
    return nil
end
