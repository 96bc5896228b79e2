-- limit_changes: pauses begin and end, and what ticks do for keys and types of jobs.
-- A pause of a type, of a key, or of all types lets no job of these start. Workers may have got jobs before the pause
-- that they have not started: signs in their inboxes recall these (`put_signs`).

-- Begins or ends the pause of `what`: "type:T", "key:K", or "*" for all types. `words`: since when, until when and why;
-- nil: the pause ends.
function limit_changes.pause(what, words)
    if words then
        redis.call("HSET", key.pauses, what, words)
        redis.call("HSET", key.settings, "has_pauses", 1)
        redis.call("ZADD", key.pause_signs, 0, what)
    else
        redis.call("HDEL", key.pauses, what)
        if redis.call("EXISTS", key.pauses) == 0 then
            redis.call("HDEL", key.settings, "has_pauses")
        end
        redis.call("ZREM", key.pause_ends, what)
        redis.call("ZREM", key.pause_signs, what)
    end
    redis.call("HINCRBY", key.settings, "revision", 1) -- workers, which see that, log the pauses
    local kind, name = string.match(what, "^(%l+):(.+)$")
    if kind == "key" then
        gate.reevaluate(name)
    else
        type_changes.pause(name or what, words ~= nil)
    end
end

-- Puts the sign of a pause into the inboxes of MOST_SIGNED workers. A worker reads the sign before the jobs in its
-- inbox, and gives back the jobs that it names: those that have not started and whose fencing number is not above that
-- of the sign. A claim does not say its key, so a sign of a key recalls all jobs with keys; those that may start are
-- claimed again at once. RETURNS whether there may be more to do.
function limit_changes.put_signs()
    local what, from = unpack(redis.call("ZRANGE", key.pause_signs, 0, 0, "WITHSCORES"))
    if not what then
        return false
    elseif not corrupt.is_word(what) then
        corrupt.remove(key.pause_signs, what)
        return true
    end
    local sign = "\n" .. protocol.PAUSED_SIGN .. " " .. what .. " " .. (redis.call("GET", key.fence) or "0")
    local page, next_from = workers.joined(from, protocol.MOST_SIGNED)
    for _, worker in ipairs(page) do
        redis.call("RPUSH", key.inbox(worker), sign)
    end
    if next_from then
        redis.call("ZADD", key.pause_signs, next_from, what)
        return true
    end
    redis.call("ZREM", key.pause_signs, what)
    return redis.call("EXISTS", key.pause_signs) == 1
end

-- Does some of what no event triggers: lets jobs of a rate start, ends pauses, counts claims for new limits, puts
-- signs. RETURNS whether there may be more to do, and whether there may be anything to do at all.
function hooks.tick()
    local any = {
        key.waiting_keys, key.rates, key.tags, key.recount, key.pause_ends, key.pause_signs, key.vacating,
    }
    if redis.call("EXISTS", unpack(any)) == 0 then
        return false, false
    end
    local ended = redis.call("ZRANGEBYSCORE", key.pause_ends, "-inf", call.now, "LIMIT", 0, protocol.MOST_MOVES)
    for _, what in ipairs(ended) do
        limit_changes.pause(what)
    end
    local has_more_claims, has_more_signs = type_changes.recount(), limit_changes.put_signs()
    return hooks.recheck() or has_more_claims or has_more_signs or #ended == protocol.MOST_MOVES, true
end
