-- workers: repairs types and workers.

-- repair_types: fixes data derived from the lanes of a type: its heads, and the number of waiting calls.
local MAX_LIMITED = 1000 -- claims of a type with a limit

-- Adds the waiting jobs of heads that are missing from their lanes: a failed server function had popped them.
local function restore_popped_jobs(type)
    for head_lane, head_enqueued, id in lanes.each(redis.call("HGET", key.heads, type) or "") do
        if repair_jobs.fix_batch(id) then
            redis.call("HSET", key.job(id), "state", "pending", "lane", head_lane, "enqueued", head_enqueued)
        end
        local state, job_type, lane, enqueued, deliveries =
            rebuild.fields(key.job(id), "state", "type", "lane", "enqueued", "deliveries")
        if state == "pending" and job_type == type and corrupt.can_wait(type, lane, enqueued, deliveries) then
            rebuild.compare("zset", key.lane(type, lane), id, rebuild.actual_or(head_enqueued))
        end
    end
end

-- Removes counted claims that no longer exist from the limit or reserve of the type.
local function fix_limited(type)
    for _, id in ipairs(rebuild.members(key.type_running(type), MAX_LIMITED)) do
        if rebuild.fields(key.job(id), "limited") ~= "1"
            and rebuild.record_finding("job " .. id .. ", counted by the limit of type " .. type) then
            type_limits.free(type, id)
        end
    end
end

-- Sets field `published` in the metrics of a type if and only if live workers serve the type; a publish depends on it.
function repair_types.fix_published(type)
    local published, saved = rebuild.fields(key.metrics(type), "published", "published before")
    local is_served = rebuild.fields(key.capacity, type)
    local is_wrong = is_served and saved or not is_served and published
    if is_wrong and rebuild.record_finding("published jobs of type " .. type) then
        redis.call("EXPIRE", key.metrics(type), protocol.METRICS_KEPT_S) -- as without workers
        workers.note_served(type, is_served)
    end
end

-- Fixes heads, which can be in any order, in a field of hash `name`. Returns true if the heads differed.
--   type: type of the lanes; a pseudo-type for minimum lanes (`minimums`) and hint lanes (`locality`).
--   names: names of the lanes; nil for all.
function repair_types.fix_heads(name, field, type, names)
    return rebuild.compare("hash", name, field, function(stored)
        local heads, expected = {}, {}
        for _, lane in ipairs(names or lanes.NAMES) do
            local id, time = rebuild.first_of(key.lane(type, lane))
            local head = id and lane .. " " .. time .. " " .. id
            if head and not expected[head] then
                heads[#heads + 1], expected[head] = head, true
            end
        end
        local text = table.concat(heads, " ")
        local is_valid = #text == #(stored or "")
        for lane, enqueued, id in lanes.each(stored or "") do
            is_valid = is_valid and expected[lane .. " " .. enqueued .. " " .. id]
        end
        return is_valid and stored or text ~= "" and text
    end)
end

-- Counts the calls of a type that wait in batches. With more than MAX_RECOUNTED jobs, another repair does so.
--   redis_keys: keys of its lanes and of the blocked jobs.
local function fix_waiting_calls(type, redis_keys)
    local calls, remaining = 0, protocol.MAX_RECOUNTED
    for _, redis_key in ipairs(redis_keys) do
        remaining = remaining - redis.call("ZCARD", redis_key)
    end
    if remaining < 0 then
        return
    end
    for _, redis_key in ipairs(redis_keys) do
        for _, id in ipairs(redis.call("ZRANGE", redis_key, 0, -1)) do
            local is_batch = id_suffix.of(id) == protocol.BATCH and rebuild.exists(key.callers(id), "zset")
            calls = calls + (is_batch and batch_calls.count_extra(id) or 0)
        end
    end
    rebuild.compare("hash", key.waiting_calls, type, calls > 0 and calls)
end

-- Fixes jobs with a key or a hint in `redis_key`: a lane, or the jobs that keys block. A waiting job without keys, and
-- an id without a hash, is moved from there to the lane.
local function fix_place(redis_key, type, lane)
    rebuild.fix_sample(redis_key, function(id, time)
        if redis_key == key.lane(type, lane) then
            return (id_suffix.has_key(id) or id_suffix.has_hint(id)) and (projections.fix(id))
        end
        local differs, job = projections.fix(id, redis_key)
        if (not job or job.waits and not job.keys[1]) and not call.found and corrupt.is_word(id) then
            hooks.enters_lane(id, type, lane, rebuild.integer(time) or call.now)
            lanes.add(id, type, lane, rebuild.integer(time) or call.now)
        end
        return differs
    end)
end

-- Fixes data derived from the lanes of a type. If `thorough`, also fixes the first jobs of its lanes: per lane as many
-- as an invocation assigns, if there are few lanes.
local function fix_type(type, thorough)
    rebuild.all("hash", key.metrics(type), rebuild.integer)
    repair_types.fix_published(type)
    fix_limited(type)
    restore_popped_jobs(type)
    local names, redis_keys, fields = lanes.NAMES, {}, {}
    for nth, lane in ipairs(names) do
        fields[nth] = type .. " " .. lane
        for _, redis_key in ipairs({ key.lane(type, lane), key.kept_back(type, lane) }) do
            if rebuild.exists(redis_key, "zset") then
                redis_keys[#redis_keys + 1] = redis_key
                fix_place(redis_key, type, lane)
                repair_shares.fix(type, lane)
            end
        end
    end
    for _, lane in ipairs(thorough and names or {}) do -- server functions write these without reading them
        rebuild.exists(key.minimum_lane(type, lane), "zset")
        rebuild.exists(key.turns(type, lane), "zset")
        rebuild.exists(key.untenanted(type, lane), "zset")
    end
    for _, redis_key in ipairs(thorough and redis_keys or {}) do
        repair_jobs.fix_all(rebuild.members(redis_key, math.max(1, math.floor(3 * protocol.MAX_MOVES / #redis_keys))))
    end
    for nth, stored in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
        local is_kept = redis.call("EXISTS", key.kept_back(type, names[nth])) == 1
        rebuild.entry("hash", key.kept_lanes, fields[nth], stored, is_kept and stored)
    end
    repair_types.fix_heads(key.heads, type, type)
    fix_waiting_calls(type, redis_keys)
    call.to_fill[type] = true
end

-- Hashes in which types are found: each field begins with a type.
local HASHES = { "heads", "capacity", "kept_lanes", "waiting_calls" }

-- Fixes the type of `field` in the hash `found_in`, unless an earlier hash has the field too: the type is then done.
function repair_types.fix(field, found_in, thorough)
    local type = string.match(field, "^%S+") or ""
    if field == "!" then
        return -- in `heads`: the indicator of rules
    elseif not validate.is_type(type) or type ~= field and found_in ~= "kept_lanes" then
        rebuild.compare("hash", key[found_in], field, nil)
        return
    end
    for _, name in ipairs(HASHES) do
        if name == found_in then
            fix_type(type, thorough)
        elseif redis.call("HEXISTS", key[name], type) == 1 then
            return
        end
    end
end

-- repair_workers: fixes data derived from the hashes and the claims of workers. The data are free slots, the totals of
-- all workers, and the claim fields of job hashes.
local TYPES = 7 -- position in `slot_fields`, after the fields of `free_slots`
local DIGITS = 16 -- length of a profile, a prefix of its types' SHA-1 (`JoinArguments.profile`)

-- Returns a worker's slot fields, types, retention of ended jobs and hints. Returns nil if the worker's hash is missing
-- or corrupt. A corrupt hash is quarantined, and the worker joins again.
local function slot_fields(worker)
    local fields = rebuild.exists(key.worker(worker), "hash")
        and free_slots.row(worker, "types", "keeps", "hints") or nil
    if fields and rebuild.integer(fields[free_slots.SLOTS]) and rebuild.integer(fields[free_slots.OTHER])
        and fields[free_slots.ACCEPTING] and fields[TYPES]
        and fields[free_slots.PROFILE] == string.sub(redis.sha1hex(fields[TYPES]), 1, DIGITS) then
        return fields
    elseif fields and fields[free_slots.ACCEPTING] ~= "0" then -- "0": its jobs are being recovered
        rebuild.set_aside(key.worker(worker))
    end
    return nil
end

-- Fixes data derived from the hash and the claims of one worker. A worker without a hash is deleted, unless it has
-- claims: its jobs are then reclaimed after the worker's timeout. Returns true if anything differed, the slot fields
-- or nil, the number of free slots, and true if the worker still exists.
local function fix_worker(worker)
    local has_claims, fields = rebuild.exists(key.claims(worker), "hash"), slot_fields(worker)
    if not fields then
        rebuild.compare("zset", key.heartbeats, worker, has_claims and rebuild.actual_or(call.now))
        rebuild.compare("zset", key.joined, worker, has_claims and rebuild.actual_or(call.now))
        return true, nil, 0, has_claims
    end
    local profile, free = free_slots.count(worker, fields)
    return rebuild.each({
        { "hash", key.worker(worker), "free", free },
        { "hash", key.worker(worker), "terms", free_slots.terms_of(fields) },
        { "zset", key.heartbeats, worker, rebuild.actual_or(call.now) },
        { "zset", key.joined, worker, rebuild.actual_or(call.now) },
        { "zset", key.free(profile), worker, free > 0 and rebuild.actual_or(call.now) },
        { "hash", key.profiles, profile, fields[TYPES] },
    }), fields, free, true
end

-- Returns true if the totals are consistent with each other. Counting all workers takes too long for the usual case
-- without errors.
local function are_totals_consistent()
    local members, slots = rebuild.table_of(key.members), rebuild.table_of(key.slots)
    local number, slots_diff = redis.call("ZCARD", key.joined), 0
    local workers_diff = number
    for _, type_slots in ipairs(redis.call("HVALS", key.capacity)) do
        slots_diff = slots_diff + (tonumber(type_slots) or 0 / 0) -- NaN equals no total
    end
    for profile, types in pairs(rebuild.table_of(key.profiles)) do
        workers_diff = workers_diff - (rebuild.integer(members[profile]) or 0 / 0)
        slots_diff = slots_diff - (rebuild.integer(slots[profile]) or 0 / 0) * texts.number_of_words(types)
        members[profile] = nil
    end
    return workers_diff == 0 and slots_diff == 0 and not next(members) and redis.call("ZCARD", key.heartbeats) == number
        and redis.call("HLEN", key.names) <= number
end

-- Returns the empty totals: key -> { kind, entries }, including profiles and types without workers. Also returns the
-- types that workers serve according to the present totals.
local function empty_totals()
    local totals, served, served_types = {}, redis.call("HVALS", key.profiles), redis.call("HKEYS", key.capacity)
    served[#served + 1] = table.concat(served_types, " ")
    for _, name in ipairs({ "members", "slots", "free_slots", "profiles", "capacity" }) do
        totals[key[name]] = { "hash", {} }
    end
    for _, profile in ipairs(redis.call("HKEYS", key.free_slots)) do
        totals[key.free(profile)] = { "zset", {} }
    end
    for _, types in ipairs(served) do
        for _, type in ipairs(workers.split(types)) do
            totals[key.serving(type)] = { "zset", {} }
        end
    end
    return totals, served_types
end

-- Adds to `totals` a worker with these slot fields and `free` free slots.
local function add_worker(totals, worker, fields, free)
    local profile, slots, types = fields[free_slots.PROFILE], fields[free_slots.SLOTS], workers.split(fields[TYPES])
    local function set(kind, name, member, value)
        totals[name] = totals[name] or { kind, {} }
        totals[name][2][member] = value
    end
    local function add(name, member, number)
        set("hash", name, member, (totals[name][2][member] or 0) + number)
    end
    set("hash", key.profiles, profile, fields[TYPES])
    set("zset", key.free(profile), worker, free > 0 and rebuild.actual_or(call.now))
    add(key.members, profile, 1)
    add(key.slots, profile, slots)
    add(key.free_slots, profile, free)
    for _, type in ipairs(types) do
        add(key.capacity, type, slots)
        set("zset", key.serving(type), profile, #types)
    end
end

-- Fixes the hashes of all workers, and their totals. Cost: O(workers).
local function fix_totals()
    local totals, served = empty_totals()
    local is_worker = {} -- worker -> true if it still exists
    for _, listed in ipairs({
        redis.call("ZRANGE", key.heartbeats, 0, -1), redis.call("ZRANGE", key.joined, 0, -1),
        redis.call("HVALS", key.names),
    }) do
        for _, worker in ipairs(listed) do
            local _, fields, free
            if is_worker[worker] == nil then
                _, fields, free, is_worker[worker] = fix_worker(worker)
            end
            if fields then
                add_worker(totals, worker, fields, free)
            end
        end
    end
    rebuild.all("hash", key.names, function(worker)
        return is_worker[worker] and worker
    end)
    local any_differs = false
    for name, total in pairs(totals) do
        local kind, entries = unpack(total)
        any_differs = rebuild.all(kind, name, function(actual, member)
            local expected = entries[member]
            if expected == 0 and (name == key.capacity or name == key.free_slots and not actual) then
                return nil -- a type without slots has no entry; a profile without free slots need not have one
            end
            return type(expected) ~= "function" and expected or expected and expected(actual)
        end, entries) or any_differs
    end
    if any_differs and not call.found then
        settings_in_force.renew_for_claims()
    end
    for _, type in ipairs(served) do
        if (totals[key.capacity][2][type] or 0) == 0 then
            repair_types.fix_published(type)
        end
    end
end

-- Fixes the totals if they are inconsistent, or if a server function failed (`thorough`).
function repair_workers.fix_all(thorough)
    if thorough or not are_totals_consistent() then
        fix_totals()
    end
end

-- Fixes the totals if the totals of a profile are inconsistent.
function repair_workers.fix_profile(profile)
    local types = workers.split(redis.call("HGET", key.profiles, profile) or "")
    local free = rebuild.integer(redis.call("HGET", key.free_slots, profile) or "0")
    local is_valid = free and rebuild.exists(key.free(profile), "zset") == (tonumber(free) > 0)
    for _, type in ipairs(types) do
        is_valid = is_valid and rebuild.exists(key.serving(type), "zset")
            and tonumber(redis.call("ZSCORE", key.serving(type), profile) or 0) == #types
    end
    if not is_valid and not call.found then -- a repair that only reports has already reported all findings
        fix_totals()
    end
end

-- Fixes data derived from a claim: the fields of the job hash, and what follows from them. If the job hash names
-- another worker that has the claim, only that worker keeps it.
local function fix_claim(worker, id, fence)
    repair_jobs.fix_batch(id)
    local holder, job_fence = rebuild.fields(key.job(id), "worker", "fence")
    if holder == nil then
        return -- the job hash is missing: its release will find no job to end
    elseif holder and holder ~= worker and job_fence and rebuild.fields(key.claims(holder), id) == job_fence then
        rebuild.compare("hash", key.claims(worker), id, nil)
        return
    end
    rebuild.each({
        { "hash", key.job(id), "worker", worker },
        { "hash", key.job(id), "fence", fence },
        { "hash", key.job(id), "state", "claimed" },
        { "hash", key.job(id), "claimed", rebuild.actual_or(call.now) },
    })
    projections.fix(id)
end

-- Fixes a worker, its claims, and the counter of fencing tokens; if `thorough`, also its claimed jobs.
function repair_workers.fix(worker, _, thorough)
    rebuild.exists(key.inbox(worker), "list")
    rebuild.exists(key.nudges(worker), "list")
    local claimed = rebuild.exists(key.claims(worker), "hash") and redis.call("HGETALL", key.claims(worker)) or {}
    local max_fence = 0
    for i = 1, #claimed, 2 do
        max_fence = math.max(max_fence, tonumber(rebuild.integer(claimed[i + 1])) or 0)
        if thorough then
            repair_jobs.fix(claimed[i])
        end
        fix_claim(worker, claimed[i], claimed[i + 1])
    end
    rebuild.compare("string", key.fence, nil, function(actual)
        if not actual and max_fence == 0 or rebuild.integer(actual) and tonumber(actual) >= max_fence then
            return actual
        end
        return call.now_us / 1000 -- above all fencing tokens: no fleet claims a thousand jobs per second since 1970
    end)
    if rebuild.fields(key.worker(worker), "accepting") then
        repair_locality.fix_worker(worker)
    end
    if fix_worker(worker) and not call.found then
        fix_totals()
    end
end
