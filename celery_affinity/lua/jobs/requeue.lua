-- requeue: handles a job that leaves its slot unfinished: the job is requeued, ends, or is dead-lettered. After a
-- requeue by its task, and after a run ended by a time limit or the loss of its pool process, the job first pauses: it
-- is scheduled until the end of the pause (field `rank`), which then is its position in its lane.
local FIRST_PAUSE_US = 1000000
local MAX_DOUBLED = 20 -- 12 days

-- Values of `how` (see `requeue.requeue`) that count as a delivery.
local COUNTS_AS_DELIVERY = { unsettled = true, aborted = true }

-- Frees the keys of a claimed job, and its part of the type's limit.
local function free(id)
    redis.call("HDEL", key.job(id), "worker", "fence", "by", "started") -- "claimed" stays: the job was delivered before
    local is_limited, type, rules, name, charged =
        unpack(redis.call("HMGET", key.job(id), "limited", "type", "rules", "name", "charged"))
    hooks.free(id, type, is_limited, rules, name, charged)
end

-- Increments a counter in the hash of a job. Returns the new number.
local function incremented(id, field)
    local number = texts.count(redis.call("HGET", key.job(id), field)) + 1
    redis.call("HSET", key.job(id), field, number)
    return number
end

-- Counts a pause of a job that is in no lane and no slot. Returns the length of the pause in µs: 0, 1, 2, 4, 8 s and
-- so on, up to `requeue_delay_max_us`.
local function next_pause(id, settings)
    local number = incremented(id, "pauses")
    if number == 1 then
        return 0
    end
    return math.min(FIRST_PAUSE_US * 2 ^ math.min(number - 2, MAX_DOUBLED), settings.requeue_delay_max_us)
end

-- Starts the pause of a job of `type` that is in no lane and no slot. If the length of the pause is 0, returns the time
-- that orders the job in its lane, and the caller must queue the job. Otherwise returns nil. `head`, `due`: fields of
-- its hash (`due_times`).
local function pause(id, type, settings, head, due)
    local pause_us = next_pause(id, settings)
    local rank = call.text(call.now_us + pause_us)
    redis.call("HSET", key.job(id), "state", pause_us > 0 and "scheduled" or "pending", "rank", rank)
    head = due_times.pause(id, rank, head, due)
    if pause_us > 0 then
        redis.call("ZADD", key.scheduled, rank, id)
    end
    hooks.pauses(id, type)
    if pause_us > 0 then
        workers.tick_in_time(pause_us, key.scheduled, id)
        return nil
    end
    return lanes.order(rank, nil, head)
end

-- Ends, dead-letters, pauses or queues a job that leaves its slot. Arguments and result: see `requeue.requeue`.
local function put_back(worker, id, how, settings, why)
    local type, lane, enqueued, acked, deliveries, rank, holder, fence, head, due = unpack(redis.call("HMGET",
        key.job(id), "type", "lane", "enqueued", "acked", "deliveries", "rank", "worker", "fence", "head", "due"))
    if holder and holder ~= worker and fence and claims.held(holder, id, fence) then
        return nil -- it was queued and claimed again, before corrupt data failed the removal of this claim
    end
    local rule = hooks.of(id)
    free(id)
    if not (corrupt.is_word(id) and corrupt.can_wait(type, lane, enqueued, deliveries)) then
        return requeue.quarantine(id, "claims:" .. worker, settings)
    end
    local end_meanwhile = rule.meanwhile(id, acked == "1")
    local new_deliveries = COUNTS_AS_DELIVERY[how] and tonumber(deliveries or 0) + 1
    if acked == "1" and end_meanwhile ~= "revoked" then
        requeue.dead_letter(id, "lost", settings)
        return nil
    elseif end_meanwhile == "gone" then
        return nil
    elseif end_meanwhile then
        ends.record(id, end_meanwhile)
        return nil
    elseif new_deliveries and new_deliveries >= settings.max_deliveries then
        redis.call("HSET", key.job(id), "deliveries", new_deliveries)
        requeue.dead_letter(id, "max_deliveries", settings, why)
        return nil
    elseif how == "requeued" and incremented(id, "requeues") > settings.max_requeues then
        requeue.dead_letter(id, "max_requeues", settings, why)
        return nil
    end
    rule.waits_again(id)
    local position = lanes.order(enqueued, rank, head)
    due_times.add(id, due)
    if how == "aborted" or how == "requeued" then
        position = pause(id, type, settings, head, due)
    else
        redis.call("HSET", key.job(id), "state", "pending")
    end
    if position then
        hooks.wait(id, type, lane, position)
    end
    if new_deliveries then -- last: an invocation that corrupt data failed is repeated
        redis.call("HSET", key.job(id), "deliveries", new_deliveries)
    end
    return position and type
end

-- Reclaims a job from its worker. A revoked or expired job ends. An acked job is lost, because Celery runs it at most
-- once. A job with too many deliveries or requeues is dead-lettered. Any other job is requeued at its place in its
-- lane, or pauses first. `why`: as in `requeue.dead_letter`. `how`:
--   "returned": counts nothing.
--   "unsettled": counts a delivery, as after the death of the worker.
--   "aborted": counts a delivery; the job pauses first.
--   "requeued": counts a requeue; the job pauses first.
-- Returns the type if the job is pending again, or nil. The caller recounts the worker's free slots afterwards, once
-- for all claims. The claim is removed last: if corrupt data fail an earlier write, the claim still leads to the job.
-- The log of requeues gets an entry. `cause`: see `requeue_log.entry`.
function requeue.requeue(worker, id, how, settings, why, cause)
    local entry = requeue_log.entry(worker, id, how, cause)
    local type = put_back(worker, id, how, settings, why)
    if entry then
        requeue_log.record(entry)
    end
    redis.call("HDEL", key.claims(worker), id)
    return type
end

-- Dead-letters a claimed job that its worker rejects or keeps after a failure. Removes the claim last, too.
function requeue.reject(worker, id, reason, settings, why)
    free(id)
    requeue.dead_letter(id, reason, settings, why)
    redis.call("HDEL", key.claims(worker), id)
end

-- Deletes a job that is in no lane and has no slot. For a batch, one invocation deletes `max_calls` calls (nil:
-- MAX_FORGOTTEN). The rest is deleted with the batch, by invocations of `ack_report`.
function requeue.delete(id, max_calls)
    redis.call("ZREM", key.dead, id)
    redis.call("ZREM", key.unreported, id)
    if not hooks.of(id).forget_some(id, max_calls or protocol.MAX_FORGOTTEN) then
        return
    end
    job_index.remove(id, 0)
    redis.call("UNLINK", key.job(id), key.message(id))
end

-- Deletes the oldest dead letters above `dead_max`, at most MAX_MOVES. An unreported dead letter is only removed from
-- the list; `ack_report` deletes it.
local function trim_dead(dead_max)
    local excess = redis.call("ZCARD", key.dead) - dead_max
    if excess > 0 then
        for _, id in ipairs(redis.call("ZRANGE", key.dead, 0, math.min(excess, protocol.MAX_MOVES) - 1)) do
            if redis.call("ZSCORE", key.unreported, id) then
                redis.call("ZREM", key.dead, id)
            else
                requeue.delete(id)
            end
        end
    end
end

-- Dead-letters a job. Its worker reports a rejected or failed job to its caller. The caller of an unreadable job cannot
-- be determined. All other ends are reported by a process that invokes `next_report`. `why`: error text from the
-- worker, or nil or "".
function requeue.dead_letter(id, reason, settings, why)
    local now = call.now
    redis.call("HSET", key.job(id), "state", "dead", "reason", reason, "ended", now)
    if why and why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    redis.call("ZADD", key.dead, now, id)
    local type, rules, name, due = unpack(redis.call("HMGET", key.job(id), "type", "rules", "name", "due"))
    due_times.remove(id, due)
    ends.count(reason ~= "failed" and type, reason) -- the worker counts failed jobs of the type
    local reports_to_callers = hooks.of(id).dead_letter(id, reason, { type = type, rules = rules, name = name })
    if dead_reasons.ARE_ANNOUNCED[reason] and not reports_to_callers then
        redis.call("ZADD", key.unreported, now, id)
    end
    trim_dead(settings.dead_max)
end

-- Handles the report of an unreported end; a batch is handled after its last call was reported. `max_calls`: see
-- `requeue.delete`.
function requeue.mark_reported(id, max_calls)
    redis.call("ZREM", key.unreported, id)
    redis.call("HDEL", key.job(id), "left", "tries")
    if redis.call("HGET", key.job(id), "state") ~= "dead" then
        ends.mark_reported(id)
    elseif not redis.call("ZSCORE", key.dead, id) then
        requeue.delete(id, max_calls) -- removed by `trim_dead`
    end
end

-- Handles a job in no lane and no slot that cannot be queued, because its hash was deleted or is corrupt. A job with a
-- message is dead-lettered. A batch is requeued with its calls. Returns the type of a requeued batch, or nil.
function requeue.quarantine(id, where, settings)
    corrupt.record("job " .. id .. ", found in " .. where)
    local its_type, lane, enqueued = hooks.of(id).rebuild(id)
    if its_type then
        redis.call("HSET", key.job(id), "state", "pending")
        hooks.wait(id, its_type, lane, enqueued)
        return its_type
    end
    if redis.call("EXISTS", key.message(id)) == 0 then
        redis.call("UNLINK", key.job(id))
        return nil
    end
    local type, task, name = unpack(redis.call("HMGET", key.job(id), "type", "task", "name"))
    redis.call("HSET", key.job(id), "type", type or "unknown", "lane", "queued.0", "enqueued", call.now,
        "task", task or "", "name", name or "")
    redis.call("HDEL", key.job(id), "acked", "expires", "deliveries")
    requeue.dead_letter(id, "unreadable", settings)
    return nil
end

-- corrupt: keys, members and fields that another client deleted or overwrote. A server function that finds corrupt data
-- quarantines it, records a finding and continues; a dispatcher logs the findings (`repair`).
-- Ids, types, worker names and key names are joined with spaces: in heads, claims, control messages and hash fields.
-- A name read from a sorted set or a hash is therefore checked with `corrupt.is_word` before it is joined. Waiting jobs
-- are read with `corrupt.first_of`.
local PAGE, MAX_PAGES = 100, 10 -- if some members are damaged: members per read of `first_of`, and number of reads

-- Returns true if `text` is a word: printable ASCII without spaces, like every valid id, type and name.
function corrupt.is_word(text)
    return #text <= protocol.MAX_NAME_LENGTH and string.find(text, "^[!-~]+$") ~= nil
end

-- Returns `what` as one log line: printable ASCII, up to MAX_SPOILED_BYTES.
function corrupt.line(what)
    return (string.gsub(string.sub(what, 1, protocol.MAX_SPOILED_BYTES), "[^ -~]", "?"))
end

-- Returns the finding for a quarantined key.
function corrupt.quarantined(name)
    return name .. ", which held what it must not: it is " .. key.set_aside(string.sub(name, #key.base + 1)) .. " now"
end

-- Quarantines a corrupt key: renames it, and lets the renamed key expire.
function corrupt.quarantine(name)
    local aside = key.set_aside(string.sub(name, #key.base + 1))
    redis.call("RENAME", name, aside)
    redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)
end

-- Quarantines the key of the findings if it is not a list, so that findings can be recorded. Returns true if the key is
-- usable, or false if this user is not allowed to rename it.
function corrupt.is_ready()
    local kind = redis.call("TYPE", key.damage_log).ok
    if kind == "none" or kind == "list" then
        return true
    end
    local is_done = pcall(corrupt.quarantine, key.damage_log)
    if is_done then
        corrupt.record(corrupt.quarantined(key.damage_log))
    end
    return is_done
end

-- Records a finding for a dispatcher's log. An error while recording does not fail the server function: if the key of
-- the findings is corrupt, the finding is dropped, because a producer has no right to quarantine keys. The next repair
-- does that.
function corrupt.record(what)
    if type(redis.pcall("LPUSH", key.damage_log, corrupt.line(what))) == "number" then
        redis.call("LTRIM", key.damage_log, 0, protocol.MAX_SPOILED - 1)
    end
end

-- Returns the findings as log lines, and deletes them.
function corrupt.take()
    local lines = corrupt.is_ready() and redis.call("LRANGE", key.damage_log, 0, protocol.MAX_SPOILED - 1) or {}
    for nth, what in ipairs(lines) do
        lines[nth] = corrupt.line(what)
    end
    if #lines > 0 then
        redis.call("UNLINK", key.damage_log)
        redis.pcall("HINCRBY", key.counters, "spoiled", #lines)
    end
    return lines
end

-- Removes an invalid member from the sorted set `name`.
function corrupt.remove(name, member)
    redis.call("ZREM", name, member)
    corrupt.record(string.sub(member, 1, 100) .. " of " .. name .. ", which is no entry: it is removed")
end

-- Returns the first `number` jobs in the sorted set `name` of waiting jobs, with their enqueue times, like ZRANGE.
-- Members that are not ids are removed. A score that is not a time is replaced by the current time.
function corrupt.first_of(name, number)
    local max_entries = number
    for _ = 1, MAX_PAGES do
        local entries, are_valid = redis.call("ZRANGE", name, 0, max_entries - 1, "WITHSCORES"), true
        for i = 1, #entries, 2 do
            local id, time = entries[i], entries[i + 1]
            if not corrupt.is_word(id) then
                corrupt.remove(name, id)
                are_valid = false
            elseif not string.find(time, "^%d+$") then
                redis.call("ZADD", name, call.now, id)
                corrupt.record("job " .. id .. " of " .. name .. ", whose time was " .. time)
                are_valid = false
            end
        end
        if are_valid then
            return { unpack(entries, 1, 2 * number) }
        end
        max_entries = PAGE
    end
    return {}
end

-- Returns true if a string is a whole number small enough for sums.
local function is_number(text)
    return #text <= protocol.MAX_NUMBER_LENGTH and string.find(text, "^%d+$") ~= nil
end

-- Returns true if the job hash has valid fields, so that the job can be queued. The fields of a deleted hash are false.
function corrupt.can_wait(type, lane, enqueued, deliveries)
    return type and validate.is_type(type) and lanes.is_lane(lane) and is_number(enqueued or "")
        and is_number(deliveries or "0")
end

-- requeue_log: the last jobs that left a worker unfinished, the newest first, and the causes. `explain` and `requeues`
-- report them. Nothing is written for a job that ends.

-- Causes of an entry. The first two are deaths of a worker.
--   "died": the worker's guard saw the process end.
--   "silent": the worker sent no heartbeat for `worker_timeout`.
--   "shutdown": the worker takes no more jobs.
--   "preempted": the job was stopped for another tenant.
--   others: see `requeue.requeue`.
local CAUSES = {
    died = true, silent = true, shutdown = true, preempted = true, returned = true, unsettled = true, aborted = true,
    requeued = true,
}

-- Returns a string as one token of bounded length; "-" if it is empty or not a string.
local function token(text)
    if type(text) ~= "string" or text == "" then
        return "-"
    end
    return (string.gsub(string.sub(text, 1, protocol.MAX_REQUEUE_TOKEN), "[^!-~]", "?"))
end

-- Returns the data of an entry about job `id`, which `worker` still holds; nil if the requeue is not recorded. Workers
-- routinely return jobs that they have not started, for example for look-ahead. `how`: as in `requeue.requeue`.
-- `cause`: "died", "silent", "preempted" or nil.
function requeue_log.entry(worker, id, how, cause)
    local name, accepting = unpack(redis.call("HMGET", key.worker(worker), "name", "accepting"))
    local job_type, task, started = unpack(redis.call("HMGET", key.job(id), "type", "task", "started"))
    how = CAUSES[how] and how or "returned"
    if not cause and accepting ~= "1" and (how == "returned" or how == "unsettled") then
        cause = "shutdown"
    elseif not cause and how == "returned" and not started then
        return nil
    end
    return { cause = cause or how, how = how, worker = name or worker, type = job_type, id = id, task = task }
end

-- Records `entry` after the job has left the worker. A job that ended is not recorded. An error, for example
-- because another client overwrote the key, does not fail the server function: the next repair quarantines the key.
function requeue_log.record(entry)
    local state, reason = unpack(redis.call("HMGET", key.job(entry.id), "state", "reason"))
    local outcome = (state == "pending" or state == "scheduled") and state or state == "dead" and reason
    if not outcome then
        return
    end
    local line = table.concat({
        call.now, entry.cause, entry.how, token(outcome), token(entry.worker), token(entry.type), token(entry.id),
        token(entry.task),
    }, " ")
    if type(redis.pcall("LPUSH", key.requeues, line)) == "number" then
        redis.call("LTRIM", key.requeues, 0, protocol.MAX_REQUEUES - 1)
        redis.call("EXPIRE", key.requeues, protocol.REQUEUES_KEPT_S)
    end
end
