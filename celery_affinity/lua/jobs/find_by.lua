-- find_by: the indexes that find a job besides its lane: its task id, its stamps, the time at which it expires.

-- RETURNS an iterator over stamps, "name:value", both encoded.
local function each_of(stamps)
    return string.gmatch(stamps or "", "%S+")
end

-- RETURNS whether a message bears more stamps than it may: each stamp costs a few commands, when the job comes and when
-- it ends.
function find_by.are_too_many(stamps)
    return #stamps > protocol.MOST_STAMP_BYTES
        or (stamps ~= "" and select(2, string.gsub(stamps, "%S+", "")) > protocol.MOST_STAMPS)
end

-- RETURNS whether the task of a job was revoked, or one of the stamps of its message since the job was `enqueued`. A
-- job that is published with a stamp that was revoked before is for the workers to refuse, which remember the stamp.
function find_by.is_revoked(task, stamps, enqueued)
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

-- Has the row of a job say, in field `more`, that there is more to be seen to when the job ends than its task's index:
-- stamps, a time at which it expires, other jobs of its task, or a limit that counts it. Most jobs have none of it, and
-- their end reads less.
function find_by.say_more(id)
    if redis.call("EXISTS", key.job(id)) == 1 then
        redis.call("HSET", key.job(id), "more", 1)
    end
end

-- Adds a job to the indexes. `expires`: µs, "" for never. RETURNS whether its task has others that have not ended.
function find_by.add(id, task, stamps, expires)
    local is_again = find_by_task.add(task, id)
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

-- Removes a job that waits no more from the indexes by which waiting jobs are ended.
function find_by.fade(id, stamps, expires)
    if stamps then
        for stamp in each_of(stamps) do
            redis.call("ZREM", key.stamped(stamp), id)
        end
    end
    if expires then
        redis.call("ZREM", key.expires, id)
    end
end

-- Removes a job from all indexes. If it was the last of its task, the task's index keeps it for `keep_s` seconds.
function find_by.forget(id, task, stamps, expires, keep_s)
    find_by.fade(id, stamps, expires)
    find_by_task.remove(task or "", id, keep_s)
end

-- Does what `find_by.forget` does, for a job of which only the id is known.
function find_by.remove(id, keep_s)
    local task, stamps, expires = unpack(redis.call("HMGET", key.job(id), "task", "stamps", "expires"))
    find_by.forget(id, task, stamps, expires, keep_s)
end
