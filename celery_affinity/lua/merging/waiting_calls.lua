-- waiting_calls: how many calls of a type wait in batches, but for one of each: with the pending jobs these are
-- all calls that wait. A status reads this instead of all batches. A count that somebody spoiled is left to a repair.

-- Adds `number`, which may be below 0, to the calls of a type.
function waiting_calls.add(type, number)
    if number ~= 0 then
        local calls = redis.pcall("HINCRBY", key.waiting_calls, type, number)
        if tonumber(calls) and calls <= 0 then
            redis.call("HDEL", key.waiting_calls, type)
        end
    end
end

-- RETURNS how many calls `batch` has beyond one.
function waiting_calls.of(batch)
    return math.max(0, redis.call("ZCARD", key.callers(batch)) - 1)
end
