-- ends: how jobs end, and how long they are retained. A worker ends the jobs that it ran. Other jobs, revoked or
-- expired while they waited, are unreported (key `unreported`) until a process of their app reports them to their
-- callers. An ended job is retained for a minute, or for longer (`affinity_keep`). In the second case, key `ended`
-- lists it in time order.
local ENDED_KEPT_S = protocol.ENDED_KEPT_S .. "" -- a string: formatting a number costs as much as the command

-- Outcome reported by a worker -> state of the job.
ends.STATE_AFTER = {
    acked = "done", ignored = "done", failed = "failed", revoked = "revoked", expired = "expired",
}

-- Splits an outcome reported by a worker. Returns the kind of end, and the reason, or "".
function ends.read_outcome(outcome)
    local how, why = string.match(outcome, "^(%S*) ?(.*)$")
    return how, string.sub(why, 1, protocol.MAX_WHY_BYTES)
end

-- Ends a job whose claim was removed, as its worker reported.
--   known: result of `claims.remove`, with three more fields. is_doubtful: true if the task may have failed, regardless
--     of `state`. ran: the call of a batch that was run. keep_s: seconds for which the job is retained, or nil for a
--     minute.
--   why: reason, or "".
--   is_untold: true if calls remain unreported.
function ends.on_worker(id, known, state, why, is_untold)
    redis.call("UNLINK", key.message(id))
    if not known.has_row then
        redis.call("UNLINK", known.key) -- the server has lost the job: a late ack may have written fields
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

-- Retains the ended job `id`, whose hash is `its`, for `keep_s` seconds, or for a minute if nil. The calls of a batch
-- are retained like other jobs, the batch itself for a minute.
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
    redis.call("ZADD", key.unreported, call.now, id)
    local stamps, expires, type, due = unpack(redis.call("HMGET", key.job(id), "stamps", "expires", "type", "due"))
    ends.count(type, how)
    job_index.fade(id, stamps, expires, due)
end

-- Increments the counter of such ends, and the metrics of `type` while a live worker serves the type.
function ends.count(type, kind)
    redis.call("HINCRBY", key.counters, kind, 1)
    if type and redis.call("HEXISTS", key.capacity, type) == 1 then
        redis.call("HINCRBY", key.metrics(type), kind, 1)
    end
end

-- Ends a waiting job. Returns true if it was waiting. A claimed job is ended by its worker.
function ends.waiting(id, how)
    local state, type, lane = unpack(redis.call("HMGET", key.job(id), "state", "type", "lane"))
    local has_lane = type and lanes.is_lane(lane)
    if state == "pending" and has_lane then
        hooks.leave(id, type, lane)
    elseif state == "scheduled" then
        redis.call("ZREM", key.scheduled, id)
        if has_lane and id_suffix.has_key(id) then
            hooks.leave(id, type, lane) -- its key may be reserved for it
        end
    elseif state ~= "merged" or not hooks.of(id).let_go(id, how) then
        return false
    end
    ends.record(id, how)
    return true
end

-- Returns "expired" or "revoked" if that happened while a worker had the job, or nil if it can wait again.
function ends.meanwhile(id)
    local task, stamps, expires, enqueued =
        unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires", "enqueued"))
    if expires and (tonumber(expires) or math.huge) <= call.now_us then
        return "expired"
    end
    return job_index.is_revoked(task or "", stamps, enqueued) and "revoked" or nil
end

-- Deletes the message of job `id` after a process other than its worker reported the end. The job can then be found
-- only by its task id, for a limited time.
function ends.mark_reported(id)
    redis.call("UNLINK", key.message(id))
    local keep_us = tonumber(redis.call("HGET", key.settings, "keep_us")) or 0
    local seconds = math.max(protocol.ENDED_KEPT_S, math.floor(keep_us / 1000000))
    job_index.remove(id, seconds)
    ends.remember(id, key.job(id), seconds > protocol.ENDED_KEPT_S and seconds)
end

-- Removes jobs from key `ended` that are older than `keep_us`, or exceed `keep_max`. They are retained for another
-- minute. Returns true if more jobs may have to be removed.
-- Cost: MAX_TRIMMED jobs.
function ends.trim(settings)
    local number = redis.call("ZCARD", key.ended)
    local cutoff = call.text(call.now_us - settings.keep_us)
    local removed_ids = number == 0 and {}
        or redis.call("ZRANGEBYSCORE", key.ended, "-inf", cutoff, "LIMIT", 0, protocol.MAX_TRIMMED)
    local excess = math.min(number - settings.keep_max, protocol.MAX_TRIMMED)
    if #removed_ids < excess then
        removed_ids = redis.call("ZRANGE", key.ended, 0, excess - 1)
        for _, id in ipairs(removed_ids) do
            job_index.remove(id, protocol.ENDED_KEPT_S)
            redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
        end
    end
    if #removed_ids > 0 then
        redis.call("ZREM", key.ended, unpack(removed_ids))
    end
    return #removed_ids == protocol.MAX_TRIMMED
end
