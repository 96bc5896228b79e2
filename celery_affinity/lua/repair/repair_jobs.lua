-- repair_jobs: fixes the keys of a job, the indexes that list it, and the hashes of batches, which are derived from
-- their calls.
local MAX_TASK_JOBS = 1000 -- jobs of a task
local MAX_INDEX_JOBS = 100 -- jobs of an index or a batch that are examined after a server function failed

-- Fixes the index of a task's jobs: key `task` records whether they are in a sorted set, numbered from 1.
local function fix_jobs_of_task(task)
    local task_entry = rebuild.exists(key.task(task), "string") and redis.call("GET", key.task(task))
    local ids = rebuild.members(key.jobs_of_task(task), MAX_TASK_JOBS, "WITHSCORES")
    local has_several, next_number = task_entry == protocol.SEVERAL, 0
    local are_valid = has_several
    for i = 2, #ids, 2 do
        are_valid = are_valid and rebuild.whole(ids[i])
    end
    if #ids > 0 and task_entry and task_entry ~= protocol.NONE and not has_several then
        ids[#ids + 1], ids[#ids + 2] = task_entry, false
    end
    rebuild.some("zset", key.jobs_of_task(task), ids, function(number)
        next_number = next_number + 1
        return are_valid and number or next_number
    end)
    local expected = #ids > 0 and protocol.SEVERAL or not has_several and task_entry
    rebuild.entry("string", key.task(task), nil, task_entry, expected)
end

-- Rebuilds the hash of a batch if another client deleted or overwrote it. Returns true if the hash was rebuilt.
function repair_jobs.fix_batch(id)
    if id_suffix.of(id) ~= protocol.BATCH
        or corrupt.can_wait(rebuild.fields(key.job(id), "type", "lane", "enqueued", "deliveries")) then
        return false
    end
    local has_calls = rebuild.exists(key.callers(id), "zset") and (call.found or batches.make_again(id))
    return has_calls and rebuild.found("job " .. id .. ", of which only the calls were left")
end

-- Enqueues a merged call separately if nothing remains of its batch.
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

-- Fixes the keys of a job and the indexes named in its hash; for a batch, also the keys of its calls.
function repair_jobs.fix(id)
    rebuild.exists(key.message(id), "string")
    if id_suffix.of(id) == protocol.BATCH then
        repair_jobs.fix_all(rebuild.members(key.callers(id), MAX_INDEX_JOBS))
        repair_jobs.fix_all(rebuild.members(key.reported_calls(id), MAX_INDEX_JOBS))
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

-- Fixes the jobs that a failed server function may have used.
--   names: its arguments: job and task ids, workers, stamps and others.
function repair_jobs.fix_named(names)
    for _, name in ipairs(names) do
        if #name <= protocol.LONGEST_NAME then
            for _, kind in ipairs(protocol.KINDS) do
                if kind.of_each then
                    rebuild.exists(key.base .. kind.name .. name, kind.kind)
                end
            end
            repair_jobs.fix(name)
            repair_jobs.fix_all(rebuild.members(key.stamped(name), MAX_INDEX_JOBS))
            fix_jobs_of_task(name)
            repair_jobs.fix_all({ redis.call("GET", key.task(name)) or nil })
            repair_jobs.fix_all(rebuild.members(key.jobs_of_task(name), MAX_INDEX_JOBS))
        end
    end
    for _, index in ipairs({ key.scheduled, key.expires, key.unreported, key.dead }) do
        repair_jobs.fix_all(rebuild.members(index, MAX_INDEX_JOBS))
    end
end
