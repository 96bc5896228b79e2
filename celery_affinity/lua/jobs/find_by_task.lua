-- find_by_task: the index of the jobs of a task id. Most task ids have one job, whose id key `task` has. Several jobs
-- of a task (which was retried, published to several queues, or repeatedly under one id) are in a sorted set, where the
-- cost of a job does not grow with the others, and key `task` says so. The last job of a task is kept for a while when
-- it has ended.

-- Adds a job to those of its task. RETURNS whether there are others that have not ended.
function find_by_task.add(task, id)
    if task == "" then
        return false
    end
    if redis.call("SET", key.task(task), id, "NX") then
        return false
    end
    if redis.call("PTTL", key.task(task)) ~= -1 then -- the job there has ended
        redis.call("SET", key.task(task), id)
        return false
    end
    local last = redis.call("ZRANGE", key.jobs_of_task(task), -1, -1, "WITHSCORES")[2]
    if not last then
        last = 1
        local other = redis.call("GET", key.task(task))
        if other ~= protocol.SEVERAL then -- else somebody deleted the others
            find_by.say_more(other)
            redis.call("ZADD", key.jobs_of_task(task), last, other)
            redis.call("SET", key.task(task), protocol.SEVERAL)
        end
    end
    redis.call("ZADD", key.jobs_of_task(task), last + 1, id)
    return true
end

-- RETURNS at most `most` jobs of `task` with a number above `after`, whether there may be more, and the number of the
-- last of them.
function find_by_task.some(task, after, most)
    local id = redis.call("GET", key.task(task))
    if id ~= protocol.SEVERAL then
        return { id or nil }, false
    end
    local found = redis.call("ZRANGEBYSCORE", key.jobs_of_task(task), "(" .. after, "+inf", "WITHSCORES",
        "LIMIT", 0, most)
    local ids = {}
    for i = 1, #found, 2 do
        ids[#ids + 1] = found[i]
    end
    local last = found[#found]
    if #ids == most and not string.find(last, "^%d+$") then
        error("spoiled numbers of the jobs of task " .. task) -- the caller would go on with these for ever
    end
    return ids, #ids == most, last
end

-- Removes a job from those of its task. The last job of a task is kept for `keep_s` seconds, if these are above 0.
function find_by_task.remove(task, id, keep_s)
    local name = key.task(task)
    local its = redis.call("GET", name)
    if its == id and keep_s ~= 0 then
        redis.call("EXPIRE", name, keep_s)
    elseif its == id then
        redis.call("UNLINK", name)
    elseif its == protocol.SEVERAL then
        redis.call("ZREM", key.jobs_of_task(task), id)
        local left = redis.call("ZRANGE", key.jobs_of_task(task), 0, 1)
        if #left == 1 then
            redis.call("UNLINK", key.jobs_of_task(task))
            redis.call("SET", name, left[1])
        elseif #left == 0 then -- somebody deleted them
            redis.call("UNLINK", name)
        end
    end
end
