-- batch_calls: the calls merged into a batch. Each is a job in state "merged" whose hash names its batch (`into`).
-- Sorted set `callers` of the batch lists them in the order in which they joined. A field of key `merging` names the
-- open job or batch that similar calls join.

-- Returns the field of key `merging` for calls of the same type, merge key, keys and task, or nil if `rules` have no
-- merge key. The task name is last, because it can be any string.
function batch_calls.place(type, rules, name)
    local merge_key = rules_codec.merge_key(rules)
    return merge_key and type and type .. " " .. merge_key .. " " .. rules_codec.of_keys(rules) .. " " .. (name or "")
end

-- Closes job `id`: calls can no longer join it.
function batch_calls.close(id, type, rules, name)
    local field = batch_calls.place(type, rules, name)
    if field and redis.call("HGET", key.merging, field) == id then
        redis.call("HDEL", key.merging, field)
    end
end

-- Returns the publish time of call `id` in µs, and its task id. A retry keeps the time of its first attempt. Returns
-- "0" and "" if the job hash is missing.
function batch_calls.published_us(id)
    local again, published, enqueued, task =
        unpack(redis.call("HMGET", key.job(id), "again", "published", "enqueued", "task"))
    return again or published or enqueued or "0", task or ""
end

-- Adds `number`, possibly negative, to the type's count of waiting calls in batches. The count excludes one call per
-- batch: together with the number of pending jobs, it is the number of waiting calls. A repair fixes a corrupt count.
function batch_calls.count_waiting(type, number)
    if number ~= 0 then
        local calls = redis.pcall("HINCRBY", key.waiting_calls, type, number)
        if tonumber(calls) and calls <= 0 then
            redis.call("HDEL", key.waiting_calls, type)
        end
    end
end

-- Returns the number of calls of a batch minus one. A waiting batch counts as one pending job; `count_waiting` counts
-- its other calls.
function batch_calls.count_extra(batch)
    return math.max(0, redis.call("ZCARD", key.callers(batch)) - 1)
end

function batch_calls.remove(id, batch)
    redis.call("ZREM", key.callers(batch), id)
    redis.call("HDEL", key.job(id), "into")
end

-- Returns true if call `id` of `batch` has neither a hash nor a message. Another client added it, so it is removed.
function batch_calls.is_missing(id, batch)
    if redis.call("EXISTS", key.job(id), key.message(id)) > 0 then
        return false
    end
    corrupt.remove(key.callers(batch), id)
    return true
end

-- Removes call `id`, which must end, from its batch, and deletes an empty batch. While a worker has the batch, two
-- kinds of calls stay: the primary, and a call that expired after the claim, because the run can still give it a
-- result. Returns true if the call was removed.
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
        if type and lanes.is_lane(lane) then
            hooks.leave(batch, type, lane)
        end
        batch_calls.vanish(batch)
    elseif state == "pending" and type then
        batch_calls.count_waiting(type, -1)
    end
    return true
end

-- Deletes the hash of a batch without calls.
function batch_calls.vanish(batch)
    local type, rules, name, enqueued, due =
        unpack(redis.call("HMGET", key.job(batch), "type", "rules", "name", "enqueued", "due"))
    due_times.remove(batch, due)
    batch_calls.close(batch, type, rules, name)
    recurring.take_back(type, rules, name, enqueued)
    local fields = flat.members(redis.call("HGETALL", key.job(batch)))
    if #fields > 0 then
        redis.call("HDEL", key.job(batch), unpack(fields)) -- a producer has no permission to delete keys
    end
end
