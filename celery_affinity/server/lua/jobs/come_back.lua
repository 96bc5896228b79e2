-- back: the ways a claimed job leaves its slot without having been done: pending again, or dead.
-- @include jobs/ends.lua
-- @include placing/lanes.lua
-- @include jobs/spoiled.lua
local back = {}

-- Frees the slot. The caller settles the worker's slots afterwards, once for all that it dropped.
function back.drop(worker, id)
    redis.call("HDEL", key.claims(worker), id)
    redis.call("HDEL", key.job(id), "worker", "fence", "started") -- "claimed" says that it was
end

-- RETURNS ids of jobs that `worker` holds, more than `most` if it holds more.
function back.some_of(worker, most)
    local ids, is_known, cursor = {}, {}, "0"
    repeat
        local page = redis.call("HSCAN", key.claims(worker), cursor, "COUNT", most + 1)
        cursor = page[1]
        for nth = 1, #page[2], 2 do
            local id = page[2][nth]
            if not is_known[id] then -- one may come twice while the hash grows or shrinks
                ids[#ids + 1], is_known[id] = id, true
            end
        end
    until cursor == "0" or #ids > most
    return ids
end

-- Deletes a dead letter.
function back.forget(id)
    redis.call("ZREM", key.dead, id)
    redis.call("ZREM", key.untold, id)
    traces.remove(id, 0)
    redis.call("UNLINK", key.job(id), key.message(id))
end

-- Keeps at most `dead_max` of them: the oldest go, some at a time, those whose callers do not know yet as soon as they
-- do.
local function trim_dead(dead_max)
    local over = redis.call("ZCARD", key.dead) - dead_max
    if over > 0 then
        for _, id in ipairs(redis.call("ZRANGE", key.dead, 0, math.min(over, protocol.MOST_MOVES) - 1)) do
            if redis.call("ZSCORE", key.untold, id) then
                redis.call("ZREM", key.dead, id)
            else
                back.forget(id)
            end
        end
    end
end

-- A rejected one is told of by its worker, an unreadable one has no caller that is known, the others are told of by
-- whoever asks (`announce`). `why`: what its worker said of the error, in words; nil or "" if nothing.
function back.bury(id, reason, settings, why)
    local now = clock.now
    redis.call("HSET", key.job(id), "state", "dead", "reason", reason, "ended", now)
    if why and why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    redis.call("ZADD", key.dead, now, id)
    redis.call("HINCRBY", key.counters, reason, 1)
    if reason ~= "rejected" and reason ~= "unreadable" then
        redis.call("ZADD", key.untold, now, id)
    end
    trim_dead(settings.dead_max)
end

-- The job, which is in no lane and has no slot, cannot wait: its row was deleted, or says what no job is. Its message,
-- if there is one, is kept among the dead letters.
function back.set_aside(id, where, settings)
    spoiled.note("job " .. id .. ", found in " .. where)
    if redis.call("EXISTS", key.message(id)) == 0 then
        redis.call("UNLINK", key.job(id))
        return
    end
    local row = redis.call("HMGET", key.job(id), "type", "task", "name")
    redis.call("HSET", key.job(id), "type", row[1] or "unknown", "lane", "queued.0", "enqueued", clock.now,
        "deliveries", 0, "task", row[2] or "", "name", row[3] or "")
    redis.call("HDEL", key.job(id), "acked", "expires")
    back.bury(id, "unreadable", settings)
end

-- Takes a job from its worker: pending again with its first enqueue time, or dead if it came back too often
-- (counted), or lost if it had been acked: Celery promised at most once. One that has been revoked, or has expired,
-- ends here. `why`: as `back.bury` has it.
-- RETURNS its type if it is pending again.
function back.put(worker, id, counted, settings, why)
    local row = redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "acked", "deliveries")
    local type, lane, enqueued = row[1], row[2], row[3]
    back.drop(worker, id)
    if not spoiled.can_wait(type, lane, enqueued, row[5]) then
        back.set_aside(id, "claims:" .. worker, settings)
        return nil
    end
    if row[4] == "1" then
        back.bury(id, "lost", settings)
        return nil
    end
    local ended = ends.meanwhile(id)
    if ended then
        ends.note(id, ended)
        return nil
    end
    if counted and redis.call("HINCRBY", key.job(id), "deliveries", 1) >= settings.max_deliveries then
        back.bury(id, "max_deliveries", settings, why)
        return nil
    end
    redis.call("HSET", key.job(id), "state", "pending")
    lanes.add(id, type, lane, enqueued)
    return type
end
