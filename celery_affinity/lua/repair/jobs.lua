-- jobs: repairs what belongs to single jobs.

-- projections: the entries of other keys that follow from the hash of a job, its place in its lane, and its claim. They
-- are compared with the actual entries, and a member of a sorted set of jobs that does not follow is removed. The lane
-- itself does not follow from the hash: a job whose hash is lost is dead-lettered from there.

-- Returns the number of keys that admit the waiting `job`. These are all keys if it is in its lane, otherwise the keys
-- before the last sub-lane that it waits in.
local function number_admitted(id, job)
    for nth = job.in_lane and 0 or #job.keys, 2, -1 do
        if rebuild.score(key.key_queue(job.keys[nth].key, job.type, job.lane), id) then
            return nth - 1
        end
    end
    return job.in_lane and #job.keys or 0
end

-- Returns the fields of job `id` as a table, or nil if its hash is missing.
--   keys: its keys.
--   waits: true if it waits in a lane or for a key. Only then it has these:
--   order: the time that orders it in its lane.
--   in_lane: its score in its lane, or false.
--   admitted: number of keys that admit it.
function projections.read(id)
    local rules, state, type, lane, enqueued, name, worker, rank, head, due, is_limited = rebuild.fields(key.job(id),
        "rules", "state", "type", "lane", "enqueued", "name", "worker", "rank", "head", "due", "limited")
    if state == nil then
        return nil
    end
    local job = {
        keys = id_suffix.has_key(id) and rules_codec.keys(rules) or {},
        hint = id_suffix.has_hint(id) and rules_codec.hint(rules or nil), state = state, type = type,
        lane = lanes.is_lane(lane) and lane, task = "=" .. (name or ""), worker = worker or "", due = due,
        is_limited = is_limited,
    }
    job.waits = state == "pending" and type and job.lane and rebuild.integer(enqueued)
    if job.waits then
        job.order, job.in_lane = lanes.order(enqueued, rank, head), rebuild.score(key.lane(type, lane), id)
        job.admitted = number_admitted(id, job)
    end
    return job
end

-- Returns the expected heads if they must contain a head of `lane`. A later stage of the repair checks which.
local function with_head(id, lane, time)
    return function(heads)
        local head = lane .. " " .. time .. " " .. id
        return lanes.place(heads or "", lane) and heads or heads and heads .. " " .. head or head
    end
end

-- Calls `expect` with the entries of a waiting job: kind of the key, key, member, expected value (`rebuild.entry`).
local function of_waiting(id, job, expect)
    local type, lane, order = job.type, job.lane, job.order
    local field, is_blocked = type .. " " .. lane, job.admitted < #job.keys
    if job.hint then
        expect("zset", key.hint_lane(job.hint, type, lane), id, job.in_lane)
        if job.in_lane then
            expect("hash", key.hint_heads, locality.field_of(job.hint, type), with_head(id, lane, job.in_lane))
        end
    end
    if job.keys[1] then
        expect("zset", key.kept_back(type, lane), id, is_blocked and order)
        expect("hash", key.kept_lanes, field, rebuild.actual_or(is_blocked and "1"))
    end
    for nth, stated in ipairs(job.keys) do
        local its_key, job_key, waits = key.key_state(stated.key), stated.key, nth <= job.admitted + 1
        expect("zset", key.key_queue(job_key, type, lane), id, waits and order)
        if key_state.is_stated(stated) then
            expect("hash", its_key, job.task, rebuild.actual_or(stated.states))
            if nth > 1 then
                expect("zset", key.second_key_jobs(job_key), id, order)
                expect("hash", its_key, "coming", "1")
            end
        end
        if waits then
            local standing = nth <= job.admitted and id
            expect("zset", key.waiting_keys, job_key, rebuild.actual_or(gate.revision()))
            expect("hash", its_key, field, repair_keyed.sublane_field(job_key, type, lane, standing))
        end
        local sublane = key_state.sublane_of(type, lane, rebuild.fields(its_key, field))
        if sublane.is_first and sublane.standing == id then
            expect("zset", key.minimum_lane(type, lane), id, order)
            expect("hash", key.minimum_heads, type, with_head(id, lane, order))
        end
    end
end

-- Calls `expect` with the entries of a claimed job.
local function of_claimed(id, job, expect)
    local fence = rebuild.integer(rebuild.fields(key.claims(job.worker), id))
    if job.is_limited and job.type and job.lane then
        expect("zset", key.type_running(job.type), id, lanes.number(job.lane))
    end
    for _, stated in ipairs(job.keys) do
        if not string.find(stated.states, "/", 1, true) then -- a rate has no holders
            if fence and key_state.is_stated(stated) then
                expect("hash", key.key_state(stated.key), job.task, rebuild.actual_or(stated.states))
            end
            expect("zset", key.held(stated.key), id, fence)
        end
        if stated.is_preemptible then
            expect("zset", key.preemptible(stated.key), id, fence)
            expect("zset", key.preemptible_tenants, stated.key, evictions.number_of(stated.key))
        end
    end
end

-- Compares the entries that follow from the hash of job `id`.
--   found_in: a sorted set with the job, which is removed there if no entry of this set follows; nil for none.
-- Returns true if anything differed, and the result of `projections.read`.
function projections.fix(id, found_in)
    local job, differs, belongs = projections.read(id), false, not found_in
    local function expect(kind, name, member, expected)
        differs, belongs = rebuild.compare(kind, name, member, expected) or differs, belongs or name == found_in
    end
    if job and job.due then
        local can_start = job.state == "pending" or job.state == "scheduled"
        expect("zset", key.due_times, id, can_start and due_times.in_field(job.due))
    end
    if job and job.waits then
        of_waiting(id, job, expect)
    elseif job and job.state == "claimed" then
        of_claimed(id, job, expect)
    end
    if not belongs then
        expect("zset", found_in, id, nil)
    end
    for _, stated in ipairs(differs and job and job.keys or {}) do
        repair_keyed.reevaluate_later(stated.key)
    end
    return differs, job
end

-- Fixes some jobs of a sorted set.
function projections.fix_some(name)
    rebuild.fix_sample(name, function(id)
        return (projections.fix(id, name))
    end)
end

-- Fixes the entry of job `id` among the jobs with their own due time.
function projections.fix_due_time(id) projections.fix(id, key.due_times) end

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
