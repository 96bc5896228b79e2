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
