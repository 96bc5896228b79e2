-- rule_changes: limits change, pauses begin and end, and what the time alone lets go on.

-- Goes on with keys that a change of limits, or the time, concerns. RETURNS whether there may be more of them.
function rule_changes.recheck()
    return redis.call("EXISTS", key.waiting_keys, key.rates) > 0 and keyed.recheck()
end

-- Writes a pause of `what` ("type:T", "key:K" or "*"), in words since when, until when and why; nil: it ends.
function rule_changes.pause(what, words)
    if words then
        redis.call("HSET", key.pauses, what, words)
        redis.call("ZADD", key.pause_signs, 0, what)
    else
        redis.call("HDEL", key.pauses, what)
        redis.call("ZREM", key.pause_ends, what)
        redis.call("ZREM", key.pause_signs, what)
    end
    redis.call("HINCRBY", key.settings, "revision", 1) -- workers log what they read anew
    local kind, name = string.match(what, "^(%l+):(.+)$")
    if kind == "key" then
        keyed.settle_again(name)
    else
        type_changes.pause(name or what, words ~= nil)
    end
end

-- Does what no event triggers: rates let jobs start, pauses end, claims are counted for new limits. RETURNS whether
-- there may be more to do.
function rule_changes.tick()
    if redis.call("EXISTS", key.waiting_keys, key.rates, key.recount, key.pause_ends, key.pause_signs) == 0 then
        return false
    end
    local ended = redis.call("ZRANGEBYSCORE", key.pause_ends, "-inf", call.now, "LIMIT", 0, protocol.MOST_MOVES)
    for _, what in ipairs(ended) do
        rule_changes.pause(what)
    end
    local has_more_claims, has_more_signs = type_changes.recount(), pause_signs.put()
    return keyed.recheck() or has_more_claims or has_more_signs or #ended == protocol.MOST_MOVES
end
