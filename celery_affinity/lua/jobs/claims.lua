-- claims: jobs held by a worker's slots. Each delivery gets a higher fencing token.

-- Returns the facts and the message that a worker reads for a claimed job: space-separated facts, and the message as
-- kombu sent it. A given `message` is not read again: a client that only publishes may lack the permission to read
-- messages.
--   expires: expiry time, or false.
--   run: id of the job whose message is used; nil means the job itself.
--   lane: lane of a moved job (`move`), which takes precedence over the message; otherwise nil.
--   preemptions, requeues: number of times the job was preempted or requeued; nil or false if there were none.
--   due: field of its hash (`due_times`), nil or false if there is none.
function claims.payload(id, fence, type, deliveries, enqueued, expires, message, run, lane, preemptions, requeues, due)
    local message_id = run or id
    message = message or redis.call("GET", key.message(message_id)) or ""
    local facts = id .. " " .. fence .. " " .. type .. " " .. deliveries .. " " .. enqueued
    local is_time = expires and string.find(expires, "^%d+$")
    if lane then
        facts = facts .. " " .. (is_time and expires or "-") .. " " .. lane
    elseif is_time then
        facts = facts .. " " .. expires
    end
    if preemptions and string.find(preemptions, "^%d+$") then -- otherwise no worker could parse the facts
        facts = facts .. " " .. protocol.WAS_PREEMPTED .. preemptions
    end
    if requeues then
        facts = facts .. " " .. protocol.WAS_REQUEUED .. texts.count(requeues)
    end
    local own_due = due_times.in_field(due)
    if own_due then
        facts = facts .. " " .. protocol.IS_DUE .. own_due
    end
    return facts, message
end

-- Returns facts and message as one string, the format of an inbox.
local function join(facts, message)
    return facts .. "\n" .. message
end

-- Puts the result of `claims.payload` into the inbox of `worker`.
function claims.put_into_inbox(worker, facts, message)
    redis.call("LPUSH", key.inbox(worker), join(facts, message))
end

-- Returns true if `id`, which had no job hash, is not a job at all: another client added it to a lane.
local function is_nothing(id)
    if hooks.of(id).STANDS_FOR_CALLS or redis.call("EXISTS", key.message(id)) == 1 then
        return false
    end
    corrupt.record("job " .. id .. ", of which only its place in a lane was left, and no message: it is removed")
    return true
end

-- Claims a job of `type` for `worker`, which `view` covers. `by`: sequence number of the release whose reply contains
-- the job, or false or nil. Returns
--   the fencing token,
--   the number of earlier deliveries,
--   the expiry time,
--   true if the job had a hash,
--   true if the job was moved,
--   the number of preemptions,
--   the enqueue time and the number of requeues, only for a job that has paused or a head start,
--   field `due`.
-- Returns nil for an expired job, and false for an id without hash and message. Both occupy no slot, and their fencing
-- token belongs to no claim. A job that was never claimed or moved, does not expire and is not due, requires no read.
function claims.grant(id, type, worker, view, by)
    local fence = string.format("%d", redis.call("INCR", key.fence))
    local new_fields
    if by then
        new_fields = redis.call("HSET", key.job(id), "state", "claimed", "worker", worker, "fence", fence,
            "claimed", call.now, "by", by) - 1
    else
        new_fields = redis.call("HSET", key.job(id), "state", "claimed", "worker", worker, "fence", fence,
            "claimed", call.now)
    end
    local deliveries, expires, is_moved, preemptions = "0", false, false, false -- a string: formatting 0 costs more
    local rank, enqueued, requeues, head, due
    -- A requeued job keeps "claimed". A job that expires, was moved, or is due has it before its first claim.
    if new_fields < 3 then
        deliveries, expires, is_moved, preemptions, rank, head, due, enqueued, requeues = unpack(redis.call("HMGET",
            key.job(id), "deliveries", "expires", "moved", "preemptions", "rank", "head", "due", "enqueued",
            "requeues"))
        deliveries = deliveries or 0
        enqueued = (rank or head) and enqueued and string.find(enqueued, "^%d+$") and enqueued
        requeues = rank and requeues
        due_times.remove(id, due)
        if expires and (tonumber(expires) or math.huge) <= call.now_us then
            redis.call("HDEL", key.job(id), "worker", "fence", "by")
            return nil
        end
    elseif new_fields > 3 and is_nothing(id) then
        redis.call("HDEL", key.job(id), "state", "worker", "fence", "claimed", "by")
        return false
    end
    view:occupy(worker, type) -- before the claim is written, which the view would count
    redis.call("HSET", key.claims(worker), id, fence)
    return fence, deliveries, expires, new_fields <= 3, is_moved, preemptions, enqueued, requeues, due
end

-- Returns true if `worker` holds `id` with this fencing token. A job may be reclaimed while its worker is silent. A
-- stale token changes nothing.
function claims.held(worker, id, fence)
    return redis.call("HGET", key.claims(worker), id) == fence
end

-- Returns the same values as `claims.payload` for a job that was claimed before, or nil if the job hash is missing or
-- corrupt.
function claims.payload_again(id)
    local fence, type, deliveries, enqueued, expires, is_moved, lane, preemptions, requeues, due =
        unpack(redis.call("HMGET", key.job(id), "fence", "type", "deliveries", "enqueued",
            "expires", "moved", "lane", "preemptions", "requeues", "due"))
    if not (fence and string.find(fence, "^%d+$") and corrupt.can_wait(type, lane, enqueued, deliveries)) then
        return nil
    end
    local run
    run, expires = hooks.of(id).runs(id, expires)
    return claims.payload(
        id, fence, type, deliveries or 0, enqueued, expires, nil, run, is_moved and lane, preemptions, requeues, due)
end

-- Removes a claim from its worker's inbox. Returns true if it was there, and the number of compared bytes.
function claims.is_unread(worker, id)
    local facts, message = claims.payload_again(id)
    if not facts then
        return false, 0
    end
    local payload = join(facts, message)
    return redis.call("LREM", key.inbox(worker), 1, payload) == 1, #payload
end

-- Fields read when a job ends: for plain jobs, for jobs whose only rule is a hint, and for other jobs.
local PLAIN, HINTED = { "fence", "acked", "task", "more" }, { "fence", "acked", "task", "more", "rules" }
local ALL = { "fence", "acked", "task", "more", "rules", "type", "stamps", "expires", "limited", "name", "charged" }

-- Removes an ended claim if `fence` is its fencing token, and frees the job's keys and limits. The caller recounts the
-- worker's free slots. Returns a table about the job, or nil. Type, stamps, expiry and name are set only if the job has
-- rules other than a hint, or has index entries to delete.
--   is_kept: true if the caller removes the claim, once the job waits again (`requeue.requeue`).
function claims.remove(worker, id, fence, is_kept)
    local mark = string.sub(id, -1)
    local is_marked = hooks.is_mark[mark]
    local fields = not is_marked and PLAIN or mark == protocol.HINTED and HINTED or ALL
    local job_key = key.job(id)
    local row = redis.call("HMGET", job_key, unpack(fields))
    local current_fence, has_more = row[1], row[4]
    local is_current = not current_fence or current_fence == fence -- without a token, the server has lost the job
    if not is_current or is_kept and not redis.call("HGET", key.claims(worker), id)
        or not is_kept and redis.call("HDEL", key.claims(worker), id) == 0 then
        return nil
    elseif has_more and fields ~= ALL then
        row, fields = redis.call("HMGET", job_key, unpack(ALL)), ALL
    end
    local ended_job = {
        key = job_key, has_row = current_fence, acked = row[2] == "1", task = row[3],
        has_more = has_more, is_marked = is_marked,
    }
    if fields ~= PLAIN then
        ended_job.rules = row[5]
    end
    if fields == ALL then
        ended_job.type, ended_job.stamps, ended_job.expires, ended_job.name = row[6], row[7], row[8], row[10]
        ended_job.has_more = has_more or hooks.by_mark[id_suffix.of(id)] ~= nil -- the task may have another job
        hooks.free(id, ended_job.type, row[9], ended_job.rules, ended_job.name, row[11])
    end
    return ended_job
end
