-- traces: what finds a job besides its lane: its task id, its stamps, the time at which it expires.
-- @include base/clock.lua
-- @include jobs/tasks.lua
local traces = {}

-- RETURNS an iterator over stamps, "name:value", both encoded.
local function each_of(stamps)
    return string.gmatch(stamps or "", "%S+")
end

-- RETURNS whether a message bears more stamps than it may (see revoking.py): each of them costs a few commands, when
-- the job comes and when it ends.
function traces.are_too_many(stamps)
    return #stamps > protocol.MOST_STAMP_BYTES
        or (stamps ~= "" and select(2, string.gsub(stamps, "%S+", "")) > protocol.MOST_STAMPS)
end

-- RETURNS whether the task of a job was revoked or, since it was `enqueued`, one of the stamps that its message bears.
-- What is published with a stamp that was revoked before is for the workers to refuse, which remember it.
function traces.is_revoked(task, stamps, enqueued)
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

-- `expires`: µs, "" for never.
function traces.add(id, task, stamps, expires)
    tasks.add(task, id)
    if stamps ~= "" then
        redis.call("HSET", key.job(id), "stamps", stamps)
        for stamp in each_of(stamps) do
            redis.call("ZADD", key.stamped(stamp), clock.now, id)
        end
    end
    if expires ~= "" then
        redis.call("HSET", key.job(id), "expires", expires, "claimed", "") -- see `claims.grant`
        redis.call("ZADD", key.expires, expires, id)
    end
end

-- The job waits no more: nothing that ends a waiting job needs to find it.
function traces.fade(id, stamps, expires)
    if stamps then
        for stamp in each_of(stamps) do
            redis.call("ZREM", key.stamped(stamp), id)
        end
    end
    if expires then
        redis.call("ZREM", key.expires, id)
    end
end

-- The job of `task`, with `stamps`, which `expires`, is to be forgotten, in `keep_s` seconds if it was the last of it.
function traces.forget(id, task, stamps, expires, keep_s)
    traces.fade(id, stamps, expires)
    tasks.remove(task or "", id, keep_s)
end

-- The same of a job of which only the id is known.
function traces.remove(id, keep_s)
    local row = redis.call("HMGET", key.job(id), "task", "stamps", "expires")
    traces.forget(id, row[1], row[2], row[3], keep_s)
end
