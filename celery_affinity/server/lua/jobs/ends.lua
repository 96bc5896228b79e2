-- ends: a job ends without a worker that could say so: revoked or expired while it waited, lost, or given up. Whoever
-- has its app tells its caller (`announce`).
-- @include base/clock.lua
-- @include placing/lanes.lua
-- @include jobs/find_by.lua
local ends = {}

-- The job, which is in no lane and has no slot, is `how`: "revoked" or "expired".
function ends.note(id, how)
    local now = clock.now
    redis.call("HSET", key.job(id), "state", how, "ended", now)
    redis.call("ZADD", key.untold, now, id)
    redis.call("HINCRBY", key.counters, how, 1)
    local row = redis.call("HMGET", key.job(id), "stamps", "expires")
    traces.fade(id, row[1], row[2])
end

-- Takes a job from where it waits. RETURNS whether it did; a claimed one is its worker's.
function ends.waiting(id, how)
    local row = redis.call("HMGET", key.job(id), "state", "type", "lane")
    if row[1] == "pending" and row[2] and lanes.is_one(row[3]) then
        lanes.remove(id, row[2], row[3])
    elseif row[1] == "scheduled" then
        redis.call("ZREM", key.scheduled, id)
    else
        return false
    end
    ends.note(id, how)
    return true
end

-- RETURNS how a job that comes back from its worker has ended meanwhile, or nil: it may wait again.
function ends.meanwhile(id)
    local row = redis.call("HMGET", key.job(id), "task", "stamps", "expires", "enqueued")
    if row[3] and (tonumber(row[3]) or math.huge) <= clock.now_us then
        return "expired"
    end
    return traces.is_revoked(row[1] or "", row[2], row[4]) and "revoked" or nil
end

-- The caller of a job knows: only what is known of it is kept for a while.
function ends.told(id)
    redis.call("UNLINK", key.message(id))
    traces.remove(id, protocol.ENDED_KEPT_S)
    redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
end
