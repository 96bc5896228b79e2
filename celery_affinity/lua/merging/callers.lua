-- callers: the calls that merged into a batch, and what is open for further ones.

-- RETURNS the field of hash `merging` for calls that are alike in what they merge by; nil if `rules` say nothing of
-- merging. The name, which may be any text, is last.
function callers.place(type, rules, name)
    local merge_key = string.match(rules or "", "^merge=(%S+)")
    return merge_key and type and type .. " " .. merge_key .. " " .. (string.match(rules, "key=.*$") or "") .. " "
        .. (name or "")
end

-- RETURNS when call `id` was published, µs, a retry as its first try was; and its task id. "0" and "" if its row is
-- gone.
function callers.published_us(id)
    local again, published, enqueued, task =
        unpack(redis.call("HMGET", key.job(id), "again", "published", "enqueued", "task"))
    return again or published or enqueued or "0", task or ""
end

-- Lets no further call join job `id`, of which all else is known.
function callers.close(id, type, rules, name)
    local field = callers.place(type, rules, name)
    if field and redis.call("HGET", key.merging, field) == id then
        redis.call("HDEL", key.merging, field)
    end
end

-- Takes call `id`, which is to end, out of its batch. RETURNS false if the run is under way that its result comes from.
-- While the batch is claimed, the call whose message the worker has is the worker's, and no other expires whose time
-- came after the claim. The last call that leaves ends the batch.
function callers.let_go(id, how)
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
    callers.remove(id, batch)
    if redis.call("EXISTS", key.callers(batch)) == 0 then
        if state == "scheduled" then
            redis.call("ZREM", key.scheduled, batch)
        end
        if type and lanes.is_one(lane) then
            with_rules.leave(batch, type, lane)
        end
        callers.vanish(batch)
    elseif state == "pending" and type then
        waiting_calls.add(type, -1)
    end
    return true
end

-- Takes call `id` out of `batch`.
function callers.remove(id, batch)
    redis.call("ZREM", key.callers(batch), id)
    redis.call("HDEL", key.job(id), "into")
end

-- Forgets a batch that has no call left.
function callers.vanish(batch)
    local type, rules, name, enqueued =
        unpack(redis.call("HMGET", key.job(batch), "type", "rules", "name", "enqueued"))
    callers.close(batch, type, rules, name)
    recurring.take_back(type, rules, name, enqueued)
    local row, fields = redis.call("HGETALL", key.job(batch)), {}
    for nth = 1, #row, 2 do
        fields[#fields + 1] = row[nth]
    end
    if #fields > 0 then
        redis.call("HDEL", key.job(batch), unpack(fields)) -- a producer has no right to delete keys
    end
end
