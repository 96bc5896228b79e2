-- batches: hooks of the rule (`no_rule`): what the arrows do with a batch beside what they do with every job. Some
-- are those of calls: call_hooks.lua.
batches.MARK, batches.STANDS_FOR_CALLS = protocol.BATCH, true

function batches.waits(id, type)
    batch_calls.count_waiting(type, batch_calls.beyond_one(id))
end

function batches.leaves(id, type)
    batch_calls.count_waiting(type, -batch_calls.beyond_one(id))
end

function batches.waits_again(id)
    redis.call("HSET", key.job(id), "task", "")
end

function batches.number_of_calls(id)
    return redis.call("ZCARD", key.callers(id))
end

-- Chooses the call that is run of those of `batch`, as `batches.choose` does.
local function first_call(batch)
    for nth, id in ipairs(redis.call("ZRANGE", key.callers(batch), 0, protocol.MOST_MOVES)) do
        local task, expires = unpack(redis.call("HMGET", key.job(id), "task", "expires"))
        local has_expired = (tonumber(expires) or math.huge) <= call.now_us
        if task or not batch_calls.is_nothing(id, batch) then
            if not has_expired or nth > protocol.MOST_MOVES then
                redis.call("HSET", key.job(batch), "size", redis.call("ZCARD", key.callers(batch)), "primary", id,
                    "task", task or "")
                return id, expires
            end
            batch_calls.remove(id, batch)
            ends.record(id, "expired")
        end
    end
    if redis.call("EXISTS", key.callers(batch)) == 1 then
        return first_call(batch) -- the first ones were no calls
    end
    batch_calls.vanish(batch)
    return nil
end

-- Chooses which call is run of a batch that was popped from its lane: the first call that has not expired. Expired
-- calls before that one end. After MOST_MOVES of these the next call is chosen in any case: its worker sees whether it
-- has expired.
-- RETURNS the call, and when it expires; nil if no call is left: then the batch is gone.
function batches.choose(batch, type)
    batch_calls.count_waiting(type, -batch_calls.beyond_one(batch))
    return first_call(batch)
end

function batches.runs(id)
    local run = redis.call("HGET", key.job(id), "primary")
    return run, run and redis.call("HGET", key.job(run), "expires")
end

function batches.counts_as(id, type, do_some_recur)
    local calls = math.min(redis.call("ZCARD", key.callers(id)), protocol.MOST_FORGOTTEN)
    return calls * protocol.KEYED_COUNTS_AS + merge.counts_as(id, type, do_some_recur)
end

function batches.has_callers(id)
    return redis.call("EXISTS", key.callers(id)) == 1
end
