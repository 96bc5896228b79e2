-- ends: a job ends without a worker that could tell: revoked or expired while it waited, lost, or given up. A process
-- that has the job's app tells its caller (`announce`).

-- Ends a job that is in no lane and has no slot. `how`: "revoked" or "expired".
function ends.record(id, how)
    local now = call.now
    if marks.of(id) == protocol.MERGES then
        local state, type, rules, name, enqueued, patient =
            unpack(redis.call("HMGET", key.job(id), "state", "type", "rules", "name", "enqueued", "patient"))
        callers.close(id, type, rules, name)
        if state == "pending" or state == "claimed" or (state == "scheduled" and patient) then
            recurring.take_back(type, rules, name, enqueued)
        end
    end
    redis.call("HSET", key.job(id), "state", how, "ended", now)
    redis.call("ZADD", key.untold, now, id)
    redis.call("HINCRBY", key.counters, how, 1)
    local stamps, expires, type = unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "type"))
    if type and redis.call("HEXISTS", key.capacity, type) == 1 then
        redis.call("HINCRBY", key.figures(type), how, 1)
    end
    find_by.fade(id, stamps, expires)
end

-- Ends a job that waits. RETURNS whether it did wait: a claimed job is its worker's.
function ends.waiting(id, how)
    local state, type, lane = unpack(redis.call("HMGET", key.job(id), "state", "type", "lane"))
    if state == "pending" and type and lanes.is_one(lane) then
        with_rules.leave(id, type, lane)
    elseif state == "scheduled" then
        redis.call("ZREM", key.scheduled, id)
        if type and lanes.is_one(lane) and marks.has_rules(id) then
            with_rules.leave(id, type, lane) -- its key may be kept for it
        end
    elseif state ~= "merged" or not callers.let_go(id, how) then
        return false
    end
    ends.record(id, how)
    return true
end

-- RETURNS how a job that comes back from its worker has ended meanwhile, or nil: it may wait again.
function ends.meanwhile(id)
    local task, stamps, expires, enqueued =
        unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires", "enqueued"))
    if expires and (tonumber(expires) or math.huge) <= call.now_us then
        return "expired"
    end
    return find_by.is_revoked(task or "", stamps, enqueued) and "revoked" or nil
end

-- Deletes the message of a job whose caller has been told, and keeps the rest for a while.
function ends.told(id)
    redis.call("UNLINK", key.message(id))
    memory.keep(id)
end
