-- pause_signs: signs that recall jobs which workers got before a pause, and have not started. A worker reads the sign
-- before the jobs in its inbox; the sign names the last fencing number that was given. The sign of a key recalls all
-- jobs with rules, since a claim does not say its key: those that may start are claimed again at once.

-- Puts signs into the inboxes of as many workers as one call may. RETURNS whether there may be more to do.
function pause_signs.put()
    local what, from = unpack(redis.call("ZRANGE", key.pause_signs, 0, 0, "WITHSCORES"))
    if not what then
        return false
    end
    local sign = "\npaused " .. what .. " " .. (redis.call("GET", key.fence) or "0")
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
