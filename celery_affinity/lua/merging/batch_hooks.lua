-- batches: hooks for batches (`default_hooks`). Some hooks are shared with calls: see call_hooks.lua.
batches.MARK, batches.STANDS_FOR_CALLS = protocol.BATCH, true

function batches.waits(id, type)
    batch_calls.count_waiting(type, batch_calls.count_extra(id))
end

function batches.leaves(id, type)
    batch_calls.count_waiting(type, -batch_calls.count_extra(id))
end

function batches.waits_again(id)
    redis.call("HSET", key.job(id), "task", "")
end

function batches.number_of_calls(id)
    return redis.call("ZCARD", key.callers(id))
end

-- Chooses the call to run: see `batches.choose`.
local function first_call(batch)
    for nth, id in ipairs(redis.call("ZRANGE", key.callers(batch), 0, protocol.MAX_MOVES)) do
        local task, expires = unpack(redis.call("HMGET", key.job(id), "task", "expires"))
        local has_expired = (tonumber(expires) or math.huge) <= call.now_us
        if task or not batch_calls.is_missing(id, batch) then
            if not has_expired or nth > protocol.MAX_MOVES then
                redis.call("HSET", key.job(batch), "size", redis.call("ZCARD", key.callers(batch)), "primary", id,
                    "task", task or "")
                return id, expires
            end
            batch_calls.remove(id, batch)
            ends.record(id, "expired")
        end
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        return first_call(batch) -- the first members were not calls
    end
    batch_calls.vanish(batch)
    return nil
end

-- Chooses the call to run for a batch popped from its lane: the first unexpired call. Expired calls before it end.
-- After MAX_MOVES expired calls, the next call is chosen regardless of its expiry, which its worker checks.
-- Returns the call and its expiry time, or nil if no call remains. The batch has then been deleted.
function batches.choose(batch, type)
    batch_calls.count_waiting(type, -batch_calls.count_extra(batch))
    return first_call(batch)
end

function batches.runs(id)
    local run = redis.call("HGET", key.job(id), "primary")
    return run, run and redis.call("HGET", key.job(run), "expires")
end

function batches.counts_as(id, type, do_some_recur)
    local calls = math.min(redis.call("ZCARD", key.callers(id)), protocol.MAX_FORGOTTEN)
    return calls * protocol.KEYED_COUNTS_AS + merge.counts_as(id, type, do_some_recur)
end

function batches.has_callers(id)
    return redis.call("EXISTS", key.callers(id)) == 1
end
