-- job_index: the indexes that find a job besides its lane: by its task id, its stamps, the time at which it expires.
-- Most task ids have one job, whose id key `task` has. Several jobs of one task id (retries, or a task that was sent
-- repeatedly, or to several queues) are in sorted set `jobs_of_task`, numbered as they came; then key `task` says so. A
-- task that is revoked has key `task` in any case.

-- RETURNS an iterator over stamps, "name:value", both encoded; nil has none.
local function each_of(stamps)
    return string.gmatch(stamps or "", "%S+")
end

-- RETURNS whether a task id was revoked, or one of the `stamps` since the job was `enqueued`. A job that was published
-- after its stamp was revoked is for the workers to refuse, which remember revoked stamps.
function job_index.is_revoked(task, stamps, enqueued)
    if task ~= "" and redis.call("EXISTS", key.revoked(task)) == 1 then
        return true
    end
    for stamp in each_of(stamps) do
        local at = redis.call("GET", key.revoked_stamp(stamp))
        if at and (tonumber(at) or 0) >= (tonumber(enqueued) or 0) then
            return true
        end
    end
    return false
end

-- Has the row of a job say, in field `more`, that it has stamps, a time at which it expires, other jobs of its task, or
-- a limit that counts it. Most jobs have none of these, and their end reads less.
local function say_more(id)
    if redis.call("EXISTS", key.job(id)) == 1 then
        redis.call("HSET", key.job(id), "more", 1)
    end
end

-- Adds a job to those of its task id. RETURNS whether there are others that have not ended.
local function add_to_task(task, id)
    if task == "" or redis.call("SET", key.task(task), id, "NX") then
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
        if other == id then -- a publish that failed half-way is repeated
            return false
        elseif other ~= protocol.SEVERAL then -- else somebody deleted the others
            say_more(other)
            redis.call("ZADD", key.jobs_of_task(task), last, other)
            redis.call("SET", key.task(task), protocol.SEVERAL)
        end
    end
    redis.call("ZADD", key.jobs_of_task(task), last + 1, id)
    return true
end

-- RETURNS at most `most` jobs of a task id with a number above `after`; whether there may be more; and the number of
-- the last of them.
function job_index.jobs_of_task(task, after, most)
    local id = redis.call("GET", key.task(task))
    if id ~= protocol.SEVERAL then
        return { id ~= protocol.NONE and id or nil }, false
    end
    local found = redis.call("ZRANGEBYSCORE", key.jobs_of_task(task), "(" .. after, "+inf", "WITHSCORES",
        "LIMIT", 0, most)
    local ids, last = flat.members(found), found[#found]
    if #ids == most and not string.find(last, "^%d+$") then
        error("spoiled numbers of the jobs of task " .. task) -- the caller would go on with these for ever
    end
    return ids, #ids == most, last
end

-- Has jobs of a task end at once that are published within `keep_s` seconds. Key `task` is there as long, so that a
-- publish looks no further if it is not. Its only job says that it has `more`, so that its end leaves the key.
function job_index.revoke(task, keep_s)
    redis.call("SET", key.revoked(task), 1, "EX", keep_s)
    if not redis.call("SET", key.task(task), protocol.NONE, "NX", "EX", keep_s) then
        redis.call("EXPIRE", key.task(task), keep_s, "GT")
        say_more(redis.call("GET", key.task(task)))
    end
end

-- Removes a job from those of its task id. The last one stays for `keep_s` seconds, 0 for none, or for as long as the
-- task is revoked.
local function remove_from_task(task, id, keep_s)
    local name = key.task(task)
    local its, is_revoked = unpack(redis.call("MGET", name, key.revoked(task)))
    local revoked_s = is_revoked and math.ceil(redis.call("PTTL", key.revoked(task)) / 1000) or 0
    local left
    if its == protocol.SEVERAL then
        redis.call("ZREM", key.jobs_of_task(task), id)
        left = redis.call("ZRANGE", key.jobs_of_task(task), 0, 1)
    elseif its ~= id then
        return
    end
    if left and #left > 0 then
        if #left == 1 then
            redis.call("UNLINK", key.jobs_of_task(task))
            redis.call("SET", name, left[1])
        end
    elseif keep_s ~= 0 and not left then
        redis.call("EXPIRE", name, revoked_s > 0 and math.max(keep_s, revoked_s) or keep_s)
    elseif revoked_s > 0 then
        redis.call("SET", name, protocol.NONE, "EX", revoked_s)
    else
        redis.call("UNLINK", name)
    end
end

-- Adds a job to the indexes. `expires`: µs, "" for never. `is_found`: whether it is found by its task already. RETURNS
-- whether its task has others that have not ended.
function job_index.add(id, task, stamps, expires, is_found)
    local is_again = not is_found and add_to_task(task, id)
    if is_again or stamps ~= "" or expires ~= "" then
        redis.call("HSET", key.job(id), "more", 1)
    end
    if stamps ~= "" then
        redis.call("HSET", key.job(id), "stamps", stamps)
        for stamp in each_of(stamps) do
            redis.call("ZADD", key.stamped(stamp), call.now, id)
        end
    end
    if expires ~= "" then
        redis.call("HSET", key.job(id), "expires", expires, "claimed", "") -- see `claims.grant`
        redis.call("ZADD", key.expires, expires, id)
    end
    return is_again
end

-- Removes a job that waits no more from the indexes by which waiting jobs are ended. `stamps`, `expires`: what its row
-- says of them, nil or false for nothing.
function job_index.fade(id, stamps, expires)
    if stamps then
        for stamp in each_of(stamps) do
            redis.call("ZREM", key.stamped(stamp), id)
        end
    end
    if expires then
        redis.call("ZREM", key.expires, id)
    end
end

-- Removes a job from all indexes; the last job of its task id is found by this for `keep_s` seconds.
function job_index.forget(id, task, stamps, expires, keep_s)
    job_index.fade(id, stamps, expires)
    remove_from_task(task or "", id, keep_s)
end

-- Does what `job_index.forget` does, for a job of which only the id is known.
function job_index.remove(id, keep_s)
    local task, stamps, expires = unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires"))
    job_index.forget(id, task, stamps, expires, keep_s)
end
