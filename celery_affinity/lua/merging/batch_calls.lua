-- batch_calls: the calls that merged into a batch: each is a job in state "merged", whose row names its batch (`into`);
-- sorted set `callers` of the batch has them in the order in which they joined. And key `merging`, whose fields say
-- which job or batch further calls join: what is open for them.

-- RETURNS the field of key `merging` for calls that are alike: of one type, merge key, key and task; nil if `rules` say
-- nothing of merging. The name of the task, which may be any text, is last.
function batch_calls.place(type, rules, name)
    local merge_key = rules_codec.merge_key(rules)
    return merge_key and type and type .. " " .. merge_key .. " " .. rules_codec.of_keys(rules) .. " " .. (name or "")
end

-- Closes job `id`, of which the rest is known, to further calls.
function batch_calls.close(id, type, rules, name)
    local field = batch_calls.place(type, rules, name)
    if field and redis.call("HGET", key.merging, field) == id then
        redis.call("HDEL", key.merging, field)
    end
end

-- RETURNS when call `id` was published, µs, a retry as its first try was; and its task id. "0" and "" if its row is
-- gone.
function batch_calls.published_us(id)
    local again, published, enqueued, task =
        unpack(redis.call("HMGET", key.job(id), "again", "published", "enqueued", "task"))
    return again or published or enqueued or "0", task or ""
end

-- Adds `number`, which may be below 0, to the calls of a type that wait in batches, but for one of each batch: so these
-- and the pending jobs are all calls that wait. A count that somebody spoiled is left to a repair.
function batch_calls.count_waiting(type, number)
    if number ~= 0 then
        local calls = redis.pcall("HINCRBY", key.waiting_calls, type, number)
        if tonumber(calls) and calls <= 0 then
            redis.call("HDEL", key.waiting_calls, type)
        end
    end
end

-- RETURNS how many calls a batch has beyond one. While the batch waits, it is one pending job itself, and these are
-- counted by `batch_calls.count_waiting`.
function batch_calls.beyond_one(batch)
    return math.max(0, redis.call("ZCARD", key.callers(batch)) - 1)
end

-- Removes call `id` from `batch`.
function batch_calls.remove(id, batch)
    redis.call("ZREM", key.callers(batch), id)
    redis.call("HDEL", key.job(id), "into")
end

-- Returns true if call `id` of `batch` has neither a hash nor a message. Another client added it, so it is removed.
function batch_calls.is_nothing(id, batch)
    if redis.call("EXISTS", key.job(id), key.message(id)) > 0 then
        return false
    end
    corrupt.remove(key.callers(batch), id)
    return true
end

-- Removes call `id`, which is to end, from its batch; a batch without calls vanishes. While a worker has the batch, the
-- call whose message it runs stays, and so does one that expired after the claim: the run may give it its result.
-- RETURNS whether the call left.
function batch_calls.let_go(id, how)
    local batch, expires = unpack(redis.call("HMGET", key.job(id), "into", "expires"))
    if not batch then
        return false
    end
    local state, type, lane, primary, claimed, fence =
        unpack(redis.call("HMGET", key.job(batch), "state", "type", "lane", "primary", "claimed", "fence"))
    if state == "claimed" then
        local has_expired = (tonumber(expires) or math.huge) <= (tonumber(claimed) or 0)
        if id == primary or (how == "expired" and not has_expired) then
            return false
        end
        redis.call("HSET", key.job(id), "ran_in", batch .. ":" .. (fence or "")) -- a revoke may end that run
    elseif state ~= "pending" and state ~= "scheduled" then
        return false
    end
    batch_calls.remove(id, batch)
    if redis.call("EXISTS", key.callers(batch)) == 0 then
        if state == "scheduled" then
            redis.call("ZREM", key.scheduled, batch)
        end
        if type and lanes.is_one(lane) then
            hooks.leave(batch, type, lane)
        end
        batch_calls.vanish(batch)
    elseif state == "pending" and type then
        batch_calls.count_waiting(type, -1)
    end
    return true
end

-- Deletes the row of a batch that has no call left.
function batch_calls.vanish(batch)
    local type, rules, name, enqueued =
        unpack(redis.call("HMGET", key.job(batch), "type", "rules", "name", "enqueued"))
    batch_calls.close(batch, type, rules, name)
    recurring.take_back(type, rules, name, enqueued)
    local fields = flat.members(redis.call("HGETALL", key.job(batch)))
    if #fields > 0 then
        redis.call("HDEL", key.job(batch), unpack(fields)) -- a producer has no right to delete keys
    end
end
