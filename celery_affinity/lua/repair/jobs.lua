-- repair_jobs: fixes the keys of a job, those by which it is found, and the times in indexes.
repair_jobs.MOST_JOBS = 1000 -- of one index
local MOST_CALLERS = 100 -- of one batch

-- Fixes the jobs of a task that has several: numbered from 1, as `find_by` adds them.
function repair_jobs.fix_jobs_of_task(task)
    sound.has_type(key.task(task), "string")
    sound.has_type(key.jobs_of_task(task), "zset")
    local its_job = redis.call("GET", key.task(task))
    local ids = redis.call("ZRANGE", key.jobs_of_task(task), 0, repair_jobs.MOST_JOBS - 1, "WITHSCORES")
    local is_good = (its_job == protocol.SEVERAL) == (#ids > 0)
    for i = 2, #ids, 2 do
        is_good = is_good and sound.is_whole(ids[i])
    end
    if is_good then
        return
    end
    if #ids == 0 then
        redis.call("UNLINK", key.task(task))
    elseif its_job and its_job ~= protocol.SEVERAL then
        ids[#ids + 1] = its_job
    end
    for i = 1, #ids, 2 do
        redis.call("ZADD", key.jobs_of_task(task), (i + 1) / 2, ids[i])
        redis.call("SET", key.task(task), protocol.SEVERAL)
    end
    spoiled.record(key.jobs_of_task(task) .. ", made again")
end

-- Makes the row of a batch again, if somebody deleted or overwrote it. RETURNS whether the row was made.
function repair_jobs.fix_batch(id)
    if marks.of(id) ~= protocol.BATCH or (sound.has_type(key.job(id), "hash")
        and spoiled.can_wait(unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "deliveries")))) then
        return false
    end
    sound.has_type(key.callers(id), "zset")
    local is_made = batches.make_again(id) ~= nil
    if is_made then
        spoiled.record("job " .. id .. ", of which only the calls were left")
    end
    return is_made
end

-- Has a call wait by itself if nothing is left of the batch that it merged into.
local function fix_call(id)
    local state, batch, type, lane, enqueued =
        unpack(redis.call("HMGET", key.job(id), "state", "into", "type", "lane", "enqueued"))
    if state == "merged" and batch and spoiled.can_wait(type, lane, enqueued, "0")
        and redis.call("EXISTS", key.job(batch), key.callers(batch)) == 0 then
        redis.call("HDEL", key.job(id), "into")
        redis.call("HSET", key.job(id), "state", "pending", "deliveries", 0,
            "bytes", redis.call("STRLEN", key.message(id)))
        with_rules.wait(id, type, lane, enqueued)
        spoiled.record("job " .. id .. ", of whose batch nothing was left")
    end
end

-- Fixes the keys of a job, and the indexes that its row names; of a batch, also those of its calls.
function repair_jobs.fix_job(id)
    sound.has_type(key.message(id), "string")
    if marks.of(id) == protocol.BATCH then
        for _, name in ipairs({ key.callers(id), key.told_callers(id) }) do
            local some = sound.has_type(name, "zset") and redis.call("ZRANGE", name, 0, MOST_CALLERS - 1)
            for _, caller in ipairs(some or {}) do
                repair_jobs.fix_job(caller)
            end
        end
    end
    if sound.has_type(key.job(id), "hash") then
        if marks.of(id) == protocol.MERGES then
            fix_call(id)
        end
        local task, stamps = unpack(redis.call("HMGET", key.job(id), "task", "stamps"))
        repair_jobs.fix_jobs_of_task(task or "")
        for stamp in string.gmatch(stamps or "", "%S+") do
            sound.has_type(key.stamped(stamp), "zset")
            sound.has_type(key.revoked_stamp(stamp), "string")
        end
    end
end

function repair_jobs.fix_jobs(ids)
    for i = 1, math.min(#ids, repair_jobs.MOST_JOBS) do
        repair_jobs.fix_job(ids[i])
    end
end

-- Fixes times in an index that no publish wrote. `field`: name of the field of a job's row that has the time;
-- `otherwise`: of the one that has it if that field is missing, if any.
function repair_jobs.fix_times(index, field, otherwise)
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", index, "(2e18", "+inf", "LIMIT", 0, repair_jobs.MOST_JOBS)) do
        local time = sound.has_type(key.job(id), "hash")
            and (redis.call("HGET", key.job(id), field) or redis.call("HGET", key.job(id), otherwise or field))
        redis.call("ZADD", index, sound.is_whole(time) and time or call.now, id)
        spoiled.record("the time of job " .. id .. " in " .. index)
    end
end
