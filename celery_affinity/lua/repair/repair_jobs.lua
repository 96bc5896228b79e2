-- repair_jobs: the keys of a job, those by which it is found, and the rows of batches, which follow from their calls.
local MOST_OF_TASK = 1000 -- jobs of a task
local MOST_NAMED = 100 -- jobs of an index or a batch that are looked at because an arrow failed

-- Fixes the index of the jobs of a task: key `task` says whether they are in a sorted set, numbered from 1.
local function fix_jobs_of_task(task)
    local its_job = rebuild.exists(key.task(task), "string") and redis.call("GET", key.task(task))
    local ids = rebuild.members(key.jobs_of_task(task), MOST_OF_TASK, "WITHSCORES")
    local is_several, nth = its_job == protocol.SEVERAL, 0
    local are_good = is_several
    for i = 2, #ids, 2 do
        are_good = are_good and rebuild.whole(ids[i])
    end
    if #ids > 0 and its_job and its_job ~= protocol.NONE and not is_several then
        ids[#ids + 1], ids[#ids + 2] = its_job, false
    end
    rebuild.some("zset", key.jobs_of_task(task), ids, function(number)
        nth = nth + 1
        return are_good and number or nth
    end)
    local should = #ids > 0 and protocol.SEVERAL or not is_several and its_job
    rebuild.entry("string", key.task(task), nil, its_job, should)
end

-- Makes the row of a batch again, if somebody deleted or overwrote it. RETURNS whether the row was made.
function repair_jobs.fix_batch(id)
    if id_suffix.of(id) ~= protocol.BATCH
        or corrupt.can_wait(rebuild.fields(key.job(id), "type", "lane", "enqueued", "deliveries")) then
        return false
    end
    local has_calls = rebuild.exists(key.callers(id), "zset") and (call.found or batches.make_again(id))
    return has_calls and rebuild.found("job " .. id .. ", of which only the calls were left")
end

-- Has a call wait by itself if nothing is left of the batch that it merged into.
local function fix_call(id)
    local state, batch, type, lane, enqueued = rebuild.fields(key.job(id), "state", "into", "type", "lane", "enqueued")
    if state == "merged" and batch and corrupt.can_wait(type, lane, enqueued, "0")
        and redis.call("EXISTS", key.job(batch), key.callers(batch)) == 0
        and rebuild.found("job " .. id .. ", of whose batch nothing was left") then
        local bytes = redis.call("STRLEN", key.message(id))
        redis.call("HDEL", key.job(id), "into")
        redis.call("HSET", key.job(id), "state", "pending", "bytes", bytes)
        hooks.wait(id, type, lane, enqueued)
    end
end

-- Fixes the keys of a job, and the indexes that its row names; of a batch, also those of its calls.
function repair_jobs.fix(id)
    rebuild.exists(key.message(id), "string")
    if id_suffix.of(id) == protocol.BATCH then
        repair_jobs.fix_all(rebuild.members(key.callers(id), MOST_NAMED))
        repair_jobs.fix_all(rebuild.members(key.told_callers(id), MOST_NAMED))
    elseif id_suffix.of(id) == protocol.MERGES then
        fix_call(id)
    end
    local task, stamps = rebuild.fields(key.job(id), "task", "stamps")
    if task then
        fix_jobs_of_task(task)
    end
    for stamp in string.gmatch(stamps or "", "%S+") do
        rebuild.exists(key.stamped(stamp), "zset")
        rebuild.exists(key.revoked_stamp(stamp), "string")
    end
end

function repair_jobs.fix_all(ids)
    for _, id in ipairs(ids) do
        repair_jobs.fix(id)
    end
end

-- Fixes what an arrow that failed was called with (`names`: job and task ids, workers, stamps and other arguments), and
-- jobs that it may have met on its way.
function repair_jobs.fix_named(names)
    for _, name in ipairs(names) do
        if #name <= protocol.LONGEST_NAME then
            for _, kind in ipairs(protocol.KINDS) do
                if kind.of_each then
                    rebuild.exists(key.base .. kind.name .. name, kind.kind)
                end
            end
            repair_jobs.fix(name)
            repair_jobs.fix_all(rebuild.members(key.stamped(name), MOST_NAMED))
            fix_jobs_of_task(name)
            repair_jobs.fix_all({ redis.call("GET", key.task(name)) or nil })
            repair_jobs.fix_all(rebuild.members(key.jobs_of_task(name), MOST_NAMED))
        end
    end
    for _, index in ipairs({ key.scheduled, key.expires, key.untold, key.dead }) do
        repair_jobs.fix_all(rebuild.members(index, MOST_NAMED))
    end
end
