-- tasks: the jobs of a task id. Most have one, whose id is a text. Several (it was retried, published to several
-- queues, or again and again under one id) are in a sorted set, where none costs more for the others, and the text says
-- so. One that has ended is kept for a while, if it was the last.
local tasks = { SEVERAL = "+" } -- no job has this id

function tasks.add(task, id)
    if task == "" then
        return
    end
    if redis.call("SET", key.task(task), id, "NX") then
        return
    end
    if redis.call("PTTL", key.task(task)) ~= -1 then -- what is there has ended
        redis.call("SET", key.task(task), id)
        return
    end
    local last = redis.call("ZRANGE", key.jobs_of_task(task), -1, -1, "WITHSCORES")[2]
    if not last then
        last = 1
        local other = redis.call("GET", key.task(task))
        if other ~= tasks.SEVERAL then -- else somebody deleted the others
            redis.call("ZADD", key.jobs_of_task(task), last, other)
            redis.call("SET", key.task(task), tasks.SEVERAL)
        end
    end
    redis.call("ZADD", key.jobs_of_task(task), last + 1, id)
end

-- RETURNS at most `most` jobs of `task`, those with a number above `after`, and whether there may be more; then the
-- number of the last of them.
function tasks.some(task, after, most)
    local id = redis.call("GET", key.task(task))
    if id ~= tasks.SEVERAL then
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

-- Takes `id` out; the last one of its task is kept for `keep_s` seconds, if that is above 0.
function tasks.remove(task, id, keep_s)
    local its = redis.call("GET", key.task(task))
    if its == id and keep_s > 0 then
        redis.call("EXPIRE", key.task(task), keep_s)
    elseif its == id then
        redis.call("UNLINK", key.task(task))
    elseif its == tasks.SEVERAL then
        redis.call("ZREM", key.jobs_of_task(task), id)
        local left = redis.call("ZRANGE", key.jobs_of_task(task), 0, 1)
        if #left == 1 then
            redis.call("UNLINK", key.jobs_of_task(task))
            redis.call("SET", key.task(task), left[1])
        elseif #left == 0 then -- somebody deleted them
            redis.call("UNLINK", key.task(task))
        end
    end
end
