-- ends: how jobs end, and how long an ended job is known. A worker ends a job that it ran. A job that ends otherwise,
-- revoked or expired while it waited, is untold (key `untold`) until a process that has its app tells its caller.
-- A job that has ended is known for a minute, or for longer (`affinity_keep`); then key `ended` has it in time order.
local ENDED_KEPT_S = protocol.ENDED_KEPT_S .. "" -- a text: to write a number takes as long as the command

-- What a worker says of a job's end -> the state of the job.
ends.STATE_AFTER = {
    acked = "done", ignored = "done", failed = "failed", revoked = "revoked", expired = "expired",
}

-- RETURNS the two parts of what a worker says of an end: how the job ended; and why, in words, "" if it does not say.
function ends.read_outcome(outcome)
    local how, why = string.match(outcome, "^(%S*) ?(.*)$")
    return how, string.sub(why, 1, protocol.MOST_WHY_BYTES)
end

-- Ends a job whose claim was removed, as its worker says. `known`: what `claims.remove` returned; is_doubtful: whether
-- the task may not have succeeded, whatever `state` says; ran: the call of a batch that was run; keep_s: how long
-- the job is known, nil for a minute. `why`: in words, "" for nothing. `is_untold`: whether callers are to be told.
function ends.on_worker(id, known, state, why, is_untold)
    redis.call("UNLINK", key.message(id))
    if not known.has_row then
        redis.call("UNLINK", known.key) -- the server has lost the job: an ack may be left of it
        return
    end
    local keep_s = known.keep_s or ENDED_KEPT_S
    if known.has_more then
        job_index.forget(id, known.task, known.stamps, known.expires, keep_s)
    elseif known.task and known.task ~= "" then
        redis.call("EXPIRE", key.task(known.task), keep_s)
    end
    if known.rules then
        hooks.of(id).has_ended(id, known, state)
    end
    redis.call("HSET", known.key, "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", known.key, "why", why)
    end
    if not is_untold then
        ends.remember(id, known.key, known.keep_s)
    end
end

-- Has job `id`, which has ended and whose row is key `its`, be known for `keep_s` seconds more, nil for a minute. Calls
-- of a batch are known like other jobs, the batch itself for a minute.
function ends.remember(id, its, keep_s)
    redis.call("EXPIRE", its, keep_s or ENDED_KEPT_S)
    if keep_s and not hooks.of(id).STANDS_FOR_CALLS then
        redis.call("ZADD", key.ended, call.now, id)
    end
end

-- Ends a job that is in no lane and has no slot. `how`: "revoked" or "expired".
function ends.record(id, how)
    hooks.of(id).ends_unrun(id)
    redis.call("HSET", key.job(id), "state", how, "ended", call.now)
    redis.call("ZADD", key.untold, call.now, id)
    local stamps, expires, type = unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "type"))
    ends.count(type, how)
    job_index.fade(id, stamps, expires)
end

-- Adds 1 to the counter of such ends, and to the metrics of `type` while a live worker serves the type.
function ends.count(type, kind)
    redis.call("HINCRBY", key.counters, kind, 1)
    if type and redis.call("HEXISTS", key.capacity, type) == 1 then
        redis.call("HINCRBY", key.metrics(type), kind, 1)
    end
end

-- Ends a job that waits. RETURNS whether it did wait: a claimed job is its worker's.
function ends.waiting(id, how)
    local state, type, lane = unpack(redis.call("HMGET", key.job(id), "state", "type", "lane"))
    local has_place = type and lanes.is_one(lane)
    if state == "pending" and has_place then
        hooks.leave(id, type, lane)
    elseif state == "scheduled" then
        redis.call("ZREM", key.scheduled, id)
        if has_place and id_suffix.has_key(id) then
            hooks.leave(id, type, lane) -- its key may be kept for it
        end
    elseif state ~= "merged" or not hooks.of(id).let_go(id, how) then
        return false
    end
    ends.record(id, how)
    return true
end

-- RETURNS "expired" or "revoked" for a job to which that happened while a worker had it; nil if it may wait again.
function ends.meanwhile(id)
    local task, stamps, expires, enqueued =
        unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires", "enqueued"))
    if expires and (tonumber(expires) or math.huge) <= call.now_us then
        return "expired"
    end
    return job_index.is_revoked(task or "", stamps, enqueued) and "revoked" or nil
end

-- The caller of job `id`, which ended without its worker's release, knows how: deletes the message. For a while the job
-- is found by its task alone.
function ends.mark_reported(id)
    redis.call("UNLINK", key.message(id))
    local keep_us = tonumber(redis.call("HGET", key.settings, "keep_us")) or 0
    local seconds = math.max(protocol.ENDED_KEPT_S, math.floor(keep_us / 1000000))
    job_index.remove(id, seconds)
    ends.remember(id, key.job(id), seconds > protocol.ENDED_KEPT_S and seconds)
end

-- Removes jobs from key `ended` that are older than `keep_us`, or more than `keep_max`: these are known for a minute
-- more. RETURNS whether there may be more to remove.
-- Cost: MOST_TRIMMED jobs.
function ends.trim(settings)
    local number = redis.call("ZCARD", key.ended)
    local since = call.text(call.now_us - settings.keep_us)
    local gone = number == 0 and {}
        or redis.call("ZRANGEBYSCORE", key.ended, "-inf", since, "LIMIT", 0, protocol.MOST_TRIMMED)
    local over = math.min(number - settings.keep_max, protocol.MOST_TRIMMED)
    if #gone < over then
        gone = redis.call("ZRANGE", key.ended, 0, over - 1)
        for _, id in ipairs(gone) do
            job_index.remove(id, protocol.ENDED_KEPT_S)
            redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
        end
    end
    if #gone > 0 then
        redis.call("ZREM", key.ended, unpack(gone))
    end
    return #gone == protocol.MOST_TRIMMED
end
