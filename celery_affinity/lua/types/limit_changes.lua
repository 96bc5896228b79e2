-- limit_changes: begins and ends pauses, and does the work of ticks for keys and types.
-- A pause of a type, of a key or of all types lets no job of these start. Workers may hold unstarted jobs that were
-- claimed before the pause: control messages in their inboxes recall these jobs (`put_signs`).

-- Begins or ends the pause of `target`: "type:T", "key:K", or "*" for all types.
--   record: start, end and reason of the pause; nil ends the pause.
function limit_changes.pause(target, record)
    if record then
        redis.call("HSET", key.pauses, target, record)
        redis.call("HSET", key.settings, "has_pauses", 1)
        redis.call("ZADD", key.pause_signs, 0, target)
    else
        redis.call("HDEL", key.pauses, target)
        if redis.call("EXISTS", key.pauses) == 0 then
            redis.call("HDEL", key.settings, "has_pauses")
        end
        redis.call("ZREM", key.pause_ends, target)
        redis.call("ZREM", key.pause_signs, target)
    end
    redis.call("HINCRBY", key.settings, "revision", 1) -- workers check the revision and log the pauses
    local kind, name = string.match(target, "^(%l+):(.+)$")
    if kind == "key" then
        gate.reevaluate(name)
    else
        type_changes.pause(name or target, record ~= nil)
    end
end

-- Puts the control message of a pause into the inboxes of MOST_SIGNED workers. A worker reads it before the jobs in its
-- inbox. It returns the affected jobs that it has not started and whose fencing token is at most the message's token.
-- A claim does not name its key, so a pause of a key recalls all jobs with keys; unpaused ones are claimed again
-- immediately. Returns true if there can be more to do.
function limit_changes.put_signs()
    local target, joined_us = unpack(redis.call("ZRANGE", key.pause_signs, 0, 0, "WITHSCORES"))
    if not target then
        return false
    elseif not corrupt.is_word(target) then
        corrupt.remove(key.pause_signs, target)
        return true
    end
    local message = "\n" .. protocol.PAUSED_SIGN .. " " .. target .. " " .. (redis.call("GET", key.fence) or "0")
    local page, next_from = workers.joined(joined_us, protocol.MOST_SIGNED)
    for _, worker in ipairs(page) do
        redis.call("RPUSH", key.inbox(worker), message)
    end
    if next_from then
        redis.call("ZADD", key.pause_signs, next_from, target)
        return true
    end
    redis.call("ZREM", key.pause_signs, target)
    return redis.call("EXISTS", key.pause_signs) == 1
end

-- Does part of the work that no event triggers: admits jobs of rates, ends pauses, counts claims for new limits, and
-- sends control messages. Returns true if there can be more to do, and true if there can be any work at all.
function hooks.tick()
    local work_keys = {
        key.waiting_keys, key.rates, key.tags, key.recount, key.pause_ends, key.pause_signs, key.stop_orders,
    }
    if redis.call("EXISTS", unpack(work_keys)) == 0 then
        return false, false
    end
    local ended = redis.call("ZRANGEBYSCORE", key.pause_ends, "-inf", call.now, "LIMIT", 0, protocol.MOST_MOVES)
    for _, target in ipairs(ended) do
        limit_changes.pause(target)
    end
    local has_more_claims, has_more_signs = type_changes.recount(), limit_changes.put_signs()
    return hooks.recheck() or has_more_claims or has_more_signs or #ended == protocol.MOST_MOVES, true
end
