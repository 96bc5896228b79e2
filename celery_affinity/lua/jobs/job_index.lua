-- job_index: indexes that find a job by its task id, its stamps or its expiry time. A task id usually has one job, and
-- key `task` has its id. Several jobs of one task id (retries, or a task published repeatedly or to several queues) are
-- in sorted set `jobs_of_task`, numbered in order of arrival. Key `task` then contains SEVERAL. Key `task` of a revoked
-- task always exists.

-- Returns an iterator over stamps ("name:value", both encoded). `stamps` can be nil.
local function each_stamp(stamps)
    return string.gmatch(stamps or "", "%S+")
end

-- Returns true if a task id was revoked, or one of the `stamps` since the job was `enqueued`. Workers reject a job that
-- was published after its stamp was revoked, because they remember revoked stamps.
function job_index.is_revoked(task, stamps, enqueued)
    if task ~= "" and redis.call("EXISTS", key.revoked(task)) == 1 then
        return true
    end
    for stamp in each_stamp(stamps) do
        local at = redis.call("GET", key.revoked_stamp(stamp))
        if at and (tonumber(at) or 0) >= (tonumber(enqueued) or 0) then
            return true
        end
    end
    return false
end

-- Sets field `more` of a job hash: the job has stamps, an expiry time, other jobs of its task, or a limit that counts
-- it. For other jobs, the majority, the end of the job reads fewer fields.
local function set_more(id)
    if redis.call("EXISTS", key.job(id)) == 1 then
        redis.call("HSET", key.job(id), "more", 1)
    end
end

-- Adds a job to the jobs of its task id. Returns true if the task has other unfinished jobs.
local function add_to_task(task, id)
    if task == "" or redis.call("SET", key.task(task), id, "NX") then
        return false
    end
    if redis.call("PTTL", key.task(task)) ~= -1 then -- that job has ended
        redis.call("SET", key.task(task), id)
        return false
    end
    local last = redis.call("ZRANGE", key.jobs_of_task(task), -1, -1, "WITHSCORES")[2]
    if not last then
        last = 1
        local other = redis.call("GET", key.task(task))
        if other == id then -- a publish that failed halfway is repeated
            return false
        elseif other ~= protocol.SEVERAL then -- otherwise another client deleted the other jobs
            set_more(other)
            redis.call("ZADD", key.jobs_of_task(task), last, other)
            redis.call("SET", key.task(task), protocol.SEVERAL)
        end
    end
    redis.call("ZADD", key.jobs_of_task(task), last + 1, id)
    return true
end

-- Returns up to `max_jobs` jobs of a task id with numbers above `after`, true if there may be more, and the last job's
-- number.
function job_index.jobs_of_task(task, after, max_jobs)
    local id = redis.call("GET", key.task(task))
    if id ~= protocol.SEVERAL then
        return { id ~= protocol.NONE and id or nil }, false
    end
    local entries = redis.call("ZRANGEBYSCORE", key.jobs_of_task(task), "(" .. after, "+inf", "WITHSCORES",
        "LIMIT", 0, max_jobs)
    local ids, last = flat.members(entries), entries[#entries]
    if #ids == max_jobs and not string.find(last, "^%d+$") then
        error("spoiled numbers of the jobs of task " .. task) -- the caller would repeat these forever
    end
    return ids, #ids == max_jobs, last
end

-- Revokes a task: jobs published within `keep_s` seconds end immediately. Key `task` exists for the same time, so that
-- a publish must check only this key. The task's only job gets field `more`, so that its end keeps the key.
function job_index.revoke(task, keep_s)
    redis.call("SET", key.revoked(task), 1, "EX", keep_s)
    if not redis.call("SET", key.task(task), protocol.NONE, "NX", "EX", keep_s) then
        redis.call("EXPIRE", key.task(task), keep_s, "GT")
        set_more(redis.call("GET", key.task(task)))
    end
end

-- Removes a job from the jobs of its task id. The last job is kept for `keep_s` seconds (0: not kept), or while the
-- task is revoked.
local function remove_from_task(task, id, keep_s)
    local name = key.task(task)
    local current_id, is_revoked = unpack(redis.call("MGET", name, key.revoked(task)))
    local revoked_s = is_revoked and math.ceil(redis.call("PTTL", key.revoked(task)) / 1000) or 0
    local others
    if current_id == protocol.SEVERAL then
        redis.call("ZREM", key.jobs_of_task(task), id)
        others = redis.call("ZRANGE", key.jobs_of_task(task), 0, 1)
    elseif current_id ~= id then
        return
    end
    if others and #others > 0 then
        if #others == 1 then
            redis.call("UNLINK", key.jobs_of_task(task))
            redis.call("SET", name, others[1])
        end
    elseif keep_s ~= 0 and not others then
        redis.call("EXPIRE", name, revoked_s > 0 and math.max(keep_s, revoked_s) or keep_s)
    elseif revoked_s > 0 then
        redis.call("SET", name, protocol.NONE, "EX", revoked_s)
    else
        redis.call("UNLINK", name)
    end
end

-- Adds a job to the indexes. `expires`: time in µs, or "". `is_found`: true if its task's index already has it. Returns
-- true if the task has other unfinished jobs.
function job_index.add(id, task, stamps, expires, is_found)
    local is_again = not is_found and add_to_task(task, id)
    if is_again or stamps ~= "" or expires ~= "" then
        redis.call("HSET", key.job(id), "more", 1)
    end
    if stamps ~= "" then
        redis.call("HSET", key.job(id), "stamps", stamps)
        for stamp in each_stamp(stamps) do
            redis.call("ZADD", key.stamped(stamp), call.now, id)
        end
    end
    if expires ~= "" then
        redis.call("HSET", key.job(id), "expires", expires, "claimed", "") -- see `claims.grant`
        redis.call("ZADD", key.expires, expires, id)
    end
    return is_again
end

-- Removes a job that no longer waits from the indexes of waiting jobs. `stamps`, `expires`, `due`: fields of its hash,
-- or nil or false.
function job_index.fade(id, stamps, expires, due)
    if stamps then
        for stamp in each_stamp(stamps) do
            redis.call("ZREM", key.stamped(stamp), id)
        end
    end
    if expires then
        redis.call("ZREM", key.expires, id)
    end
    due_times.remove(id, due)
end

-- Removes a job from all indexes. The last job of a task id can still be found by the task id for `keep_s` seconds.
function job_index.forget(id, task, stamps, expires, keep_s)
    job_index.fade(id, stamps, expires)
    remove_from_task(task or "", id, keep_s)
end

-- Like `job_index.forget`, but reads the fields from the job hash.
function job_index.remove(id, keep_s)
    local task, stamps, expires, due = unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires", "due"))
    due_times.remove(id, due)
    job_index.forget(id, task, stamps, expires, keep_s)
end
