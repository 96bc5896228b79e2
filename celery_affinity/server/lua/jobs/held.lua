-- held: claims that somebody comes back to.
-- @include jobs/claims.lua

-- RETURNS whether `worker` holds `id` with this very fencing number. The job may have been taken back while the
-- worker was silent: a stale number changes nothing.
function claims.held(worker, id, fence)
    return redis.call("HGET", key.claims(worker), id) == fence
end

-- RETURNS what a worker read, or is to read, of a job that was claimed before.
function claims.payload_again(id)
    local row = redis.call("HMGET", key.job(id), "fence", "type", "deliveries", "enqueued", "expires")
    if not (row[1] and row[2] and row[3] and row[4]) then
        return nil -- somebody deleted what was known of it
    end
    return claims.payload(id, row[1], row[2], row[3], row[4], row[5])
end

-- Takes a claim out of the inbox. RETURNS whether it was there, and how many bytes were compared.
function claims.is_unread(worker, id)
    local payload = claims.payload_again(id)
    if not payload then
        return false, 0
    end
    return redis.call("LREM", key.inbox(worker), 1, payload) == 1, #payload
end
