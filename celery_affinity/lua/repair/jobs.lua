-- jobs: repairs what belongs to single jobs.

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
        are_valid = are_valid and rebuild.integer(ids[i])
    end
    if #ids > 0 and task_entry and task_entry ~= protocol.NONE and not has_several then
        ids[#ids + 1], ids[#ids + 2] = task_entry, false
    end
    rebuild.compare_all("zset", key.jobs_of_task(task), ids, function(number)
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
    local has_calls = rebuild.exists(key.callers(id), "zset") and (call.found or batches.rebuild(id))
    return has_calls and rebuild.record_finding("job " .. id .. ", of which only the calls were left")
end

-- Enqueues a merged call separately if nothing remains of its batch.
local function fix_call(id)
    local state, batch, type, lane, enqueued, head, due =
        rebuild.fields(key.job(id), "state", "into", "type", "lane", "enqueued", "head", "due")
    if state == "merged" and batch and corrupt.can_wait(type, lane, enqueued, "0")
        and redis.call("EXISTS", key.job(batch), key.callers(batch)) == 0
        and rebuild.record_finding("job " .. id .. ", of whose batch nothing was left") then
        local bytes = redis.call("STRLEN", key.message(id))
        redis.call("HDEL", key.job(id), "into")
        redis.call("HSET", key.job(id), "state", "pending", "bytes", bytes)
        hooks.wait(id, type, lane, lanes.order(enqueued, nil, head))
        due_times.add(id, due)
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
        if #name <= protocol.MAX_NAME_LENGTH then
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

-- repair_locality: fixes data derived from hints of jobs and workers: hint lanes, their heads, and holders of hints.

-- Fixes the hint lanes of one field of key `hint_heads`, which names a hint and a type, and their heads.
function repair_locality.fix(field)
    local hint, type = locality.parts_of(field)
    local names = {}
    for lane in lanes.each(hint and rebuild.fields(key.hint_heads, field) or "") do
        if lanes.is_lane(lane) then
            projections.fix_some(key.hint_lane(hint, type, lane))
            names[#names + 1] = lane
        end
    end
    repair_types.fix_heads(key.hint_heads, field, hint and locality.place_of(hint, type), names)
end

-- Makes the hints of a worker with a hash agree with the holders of these hints.
function repair_locality.fix_worker(worker)
    local hints = rebuild.members(key.hints(worker), 0)
    for _, hint in ipairs(hints) do
        rebuild.compare("zset", key.holders(hint), worker, rebuild.actual_or(rebuild.score(key.hints(worker), hint)))
        rebuild.keep(key.holders(hint), function(other)
            return rebuild.score(key.hints(other), hint)
        end)
    end
    rebuild.compare("hash", key.worker(worker), "hints", #hints > 0 and locality.words(hints))
end

-- repair_recurring: fixes data derived from the hashes of recurring calls: their due times, and the calls that postpone
-- them.

-- Returns the match of calls that postpone a recurring call, as in key `recurring_matches`. Returns nil if the
-- recurring call is invalid: its hash lacks fields or an interval, or its signature is missing.
local function match_of(name)
    if not rebuild.exists(key.recurring_call(name), "hash") or not rebuild.exists(key.signature(name), "string") then
        return nil
    end
    local type, merge_key, task, stale, since =
        unpack(redis.call("HMGET", key.recurring_call(name), "type", "merge", "task", "stale", "since"))
    local is_valid = type and string.find(type, "^%S+$") and merge_key and string.find(merge_key, "^%S+$")
        and rebuild.integer(stale) and tonumber(stale) > 0 and (since == "enqueue" or since == "end")
    return is_valid and recurring.place(type, merge_key, task) or nil
end

-- Fixes the time and the match of a recurring call, or deletes an invalid one. Returns the result of `match_of`.
function repair_recurring.fix(name)
    local match = match_of(name)
    if not match then
        rebuild.compare("zset", key.recurring, name, nil)
        if redis.call("EXISTS", key.recurring_call(name), key.signature(name)) > 0
            and rebuild.record_finding("recurring call " .. name) then
            redis.call("UNLINK", key.recurring_call(name), key.signature(name))
        end
        return nil
    end
    local stale, due, is_suspended = unpack(redis.call("HMGET", key.recurring_call(name), "stale", "due", "suspended"))
    local valid_due = rebuild.integer(due) and tonumber(due) < 2e18 and due or call.text(call.now_us + tonumber(stale))
    rebuild.each({
        { "hash", key.recurring_call(name), "due", valid_due },
        { "zset", key.recurring, name, function(stored)
            local time = tonumber(stored)
            local is_valid = time and tonumber(valid_due) <= time and time < 2e18 -- later: it was handed out
            return is_suspended and "inf" or is_valid and stored or valid_due
        end },
        { "hash", key.recurring_matches, match, function(names)
            local listed = workers.split(names)
            local is_listed = texts.has_word(names, name)
            listed[#listed + 1] = not is_listed and #listed < protocol.MAX_ALIKE and name or nil
            return table.concat(listed, " ")
        end },
    })
    return match
end

-- Fixes the recurring calls that calls with this `match` postpone, and their list.
function repair_recurring.fix_place(match)
    rebuild.compare("hash", key.recurring_matches, match, function(names)
        local remaining = {}
        for _, name in ipairs(workers.split(names)) do
            remaining[#remaining + 1] = repair_recurring.fix(name) == match and name or nil
        end
        return #remaining > 0 and table.concat(remaining, " ")
    end)
end
