-- which_call: which call of a batch is run. A script that publishes has this as well, so nothing here deletes keys.

-- Chooses the call that is run of a batch that was popped from its lane: the first that has not expired. Those before
-- it end. A script chooses among MOST_MOVES at most; if all of these have expired, the next one is for the worker to
-- look at. RETURNS the call, and when it expires; nil if none is left, and then the batch is gone.
function which_call.choose(batch, type)
    waiting_calls.add(type, -waiting_calls.of(batch))
    for nth, id in ipairs(redis.call("ZRANGE", key.callers(batch), 0, protocol.MOST_MOVES)) do
        local task, expires = unpack(redis.call("HMGET", key.job(id), "task", "expires"))
        local has_expired = (tonumber(expires) or math.huge) <= call.now_us
        if not has_expired or nth > protocol.MOST_MOVES then
            redis.call("HSET", key.job(batch), "size", redis.call("ZCARD", key.callers(batch)), "primary", id,
                "task", task or "")
            return id, expires
        end
        callers.remove(id, batch)
        ends.record(id, "expired")
    end
    callers.vanish(batch)
    return nil
end
