-- keys: repairs job keys and minimums.

-- repair_keyed: fixes data derived from the hashes of jobs with keys: their sub-lanes, and the holders of their keys.
-- Each waiting job is in the sub-lane of its key, type and lane. It is also either in the lane or among the jobs that
-- keys block. A repair finds the job in any of these places and fixes the others. A tick then updates the lanes.

-- Returns the keys and the position of job `id`, from its hash; nil if it has no key.
--   waits: true if the job waits there.
local function keyed_job(id)
    if not id_suffix.has_key(id) then
        return nil
    end
    local rules, state, type, lane, enqueued, name, worker, rank, head =
        rebuild.fields(key.job(id), "rules", "state", "type", "lane", "enqueued", "name", "worker", "rank", "head")
    local job_keys = rules_codec.keys(rules)
    return job_keys[1] and {
        keys = job_keys, state = state, type = type, lane = lane, enqueued = lanes.order(enqueued, rank, head),
        task = "=" .. (name or ""), worker = worker or "",
        waits = state == "pending" and type and lanes.is_lane(lane) and rebuild.integer(enqueued),
    }
end

-- Returns a sub-lane as a table, parsed from the hash of its key (`key_state.sublane_of`).
function repair_keyed.written(job_key, type, lane)
    return key_state.sublane_of(type, lane, rebuild.fields(key.key_state(job_key), type .. " " .. lane))
end

-- Returns the number of keys that admit the waiting job `id`. These are all keys if it is in its lane, otherwise the
-- keys before the last sub-lane that it waits in.
local function number_admitted(id, job)
    if rebuild.score(key.lane(job.type, job.lane), id) then
        return #job.keys
    end
    for nth = #job.keys, 2, -1 do
        if rebuild.score(key.key_queue(job.keys[nth].key, job.type, job.lane), id) then
            return nth - 1
        end
    end
    return 0
end

-- Returns the entry of the limit that the job's task specifies for a key, as arguments of `rebuild.compare`.
local function stated_entry(job, stated)
    return { "hash", key.key_state(stated.key), job.task, rebuild.actual_or(stated.states) }
end

-- Returns the entries derived from the waiting `job`, as arguments of `rebuild.compare`.
--   number: number of keys that admit it.
local function entries_if_waiting(id, job, number)
    local where, is_blocked = job.type .. " " .. job.lane, number < #job.keys
    local entries = {
        { "zset", key.kept_back(job.type, job.lane), id, is_blocked and job.enqueued },
        { "hash", key.kept_lanes, where, rebuild.actual_or(is_blocked and "1") },
    }
    for nth, stated in ipairs(job.keys) do
        local waits = nth <= number + 1
        entries[#entries + 1] = { "zset", key.key_queue(stated.key, job.type, job.lane), id, waits and job.enqueued }
        local is_stated = key_state.is_stated(stated)
        entries[#entries + 1] = is_stated and stated_entry(job, stated) or nil
        if is_stated and nth > 1 then
            entries[#entries + 1] = { "zset", key.second_key_jobs(stated.key), id, job.enqueued }
            entries[#entries + 1] = { "hash", key.key_state(stated.key), "coming", "1" }
        end
        entries[#entries + 1] =
            waits and { "zset", key.waiting_keys, stated.key, rebuild.actual_or(gate.revision()) } or nil
    end
    return entries
end

-- Returns the entries derived from `job`, as arguments of `rebuild.compare`.
local function expected_entries(id, job, number)
    if job.waits then
        return entries_if_waiting(id, job, number)
    end
    local entries = {}
    local fence = job.state == "claimed" and rebuild.integer(rebuild.fields(key.claims(job.worker), id))
    for _, stated in ipairs(job.state == "claimed" and job.keys or {}) do
        if not string.find(stated.states, "/", 1, true) then -- a rate has no holders
            local is_stated = fence and key_state.is_stated(stated)
            entries[#entries + 1] = is_stated and stated_entry(job, stated) or nil
            entries[#entries + 1] = { "zset", key.held(stated.key), id, fence }
        end
        if stated.is_preemptible then
            entries[#entries + 1] = { "zset", key.preemptible(stated.key), id, fence }
            entries[#entries + 1] = { "zset", key.preemptible_tenants, stated.key, function()
                return evictions.number_of(stated.key) -- computed after this job has been counted
            end }
        end
    end
    return entries
end

-- Returns true if job `id` is at a position that requires its admission by `job_key` in this sub-lane.
local function is_admitted(id, job_key, type, lane)
    local job, position = keyed_job(id), 0
    for nth, stated in ipairs(job and job.keys or {}) do
        position = stated.key == job_key and nth or position
    end
    return position > 0 and job.waits and job.type == type and job.lane == lane and number_admitted(id, job) >= position
end

-- Fixes the field of a sub-lane: its first and its admitted job, or the state that all are in the lane (`unbounded`).
--   standing: id of a job that is admitted; false if some job is not admitted; nil if unknown.
-- Returns true if the field differed.
local function fix_written(job_key, type, lane, standing)
    local sublane, name, is_bounded = key.key_queue(job_key, type, lane), type .. " " .. lane, false
    if rebuild.fields(key.key_state(job_key), "+" .. name) then
        standing = nil -- the lane also has jobs that must still be blocked
    end
    local differs = rebuild.compare("hash", key.key_state(job_key), name, function(actual)
        local first, enqueued
        if rebuild.exists(sublane, "zset") then
            local first_entry = call.found and redis.call("ZRANGE", sublane, 0, 0, "WITHSCORES")
            first, enqueued = unpack(first_entry or corrupt.first_of(sublane, 1))
        end
        if unbounded.is_value(actual) and standing ~= false then
            return first and actual
        end
        is_bounded = first and tenants.is_tenant_key(job_key) and (not actual or unbounded.is_value(actual))
        local stored = key_state.sublane_of(type, lane, actual)
        if standing and standing ~= stored.standing then
            stored = { standing = standing }
        end
        local admitted = stored.standing
        local is_valid = admitted and redis.call("ZSCORE", sublane, admitted)
            and is_admitted(admitted, job_key, type, lane)
        return first and enqueued .. " " .. first
            .. key_state.standing_text(is_valid and admitted or "", stored.is_first)
    end)
    if is_bounded and not call.found then
        redis.call("HSET", key.key_state(job_key), "+" .. name, redis.call("ZCARD", sublane))
    end
    return differs
end

-- Fixes the fields of a key: limits by task, times by type, a turn, a retry, and sub-lanes.
local function fix_fields(job_key)
    rebuild.all("hash", key.key_state(job_key), function(value, name)
        local kind = string.sub(name, 1, 1)
        local is_valid
        if kind == "=" then
            is_valid = string.find(value, "^[1-9]%d*$") or string.find(value, "^[1-9]%d*/[1-9]%d*$")
        elseif kind == "@" or kind == "+" then
            is_valid = rebuild.integer(value)
        elseif name == "turn" then
            local began, until_us = string.match(value, "^%S+ (%d+) (%d+)$")
            is_valid = rebuild.integer(began) and rebuild.integer(until_us)
        elseif name == "coming" then
            is_valid = rebuild.exists(key.second_key_jobs(job_key), "zset")
        elseif name == "retry" then
            local job = keyed_job(value)
            is_valid = job and key_state.has(value, job_key)
                and (job.state == "pending" or rebuild.score(key.scheduled, value))
        else
            is_valid = lanes.is_lane(string.match(name, "^%S+ (%S+)$"))
        end
        return is_valid and value
    end)
end

-- Lets a tick re-evaluate a key that has changed.
local function reevaluate_later(job_key)
    if not call.found then
        fix_fields(job_key)
        unbounded.mark_for_count(job_key)
        key_state.cache().known[job_key] = nil
        redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, job_key)
    end
end

-- Fixes the data derived from the hash of job `id`.
--   redis_key: the sorted set in which the job was found; nil if all valid sets are acceptable.
-- Returns true if anything differed, and the job, or nil if it has no key.
function repair_keyed.fix_job(id, redis_key)
    local job, belongs = keyed_job(id), not redis_key
    local number = job and job.waits and number_admitted(id, job) or 0
    local entries = job and expected_entries(id, job, number) or {}
    for _, entry in ipairs(entries) do
        belongs = belongs or entry[2] == redis_key
    end
    local differs = rebuild.each(entries)
    if not belongs then
        differs = rebuild.compare("zset", redis_key, id, nil) or differs
    end
    for nth, stated in ipairs(job and job.waits and job.keys or {}) do
        if nth <= number + 1 then
            differs = fix_written(stated.key, job.type, job.lane, nth <= number and id) or differs
        end
    end
    for _, stated in ipairs(job and differs and job.keys or {}) do
        reevaluate_later(stated.key)
    end
    return differs, job
end

-- Fixes jobs with keys in `redis_key`: a lane, or the jobs that keys block.
function repair_keyed.fix_place(redis_key, type, lane)
    rebuild.fix_sample(redis_key, function(id, time)
        if redis_key == key.lane(type, lane) then
            if repair_locality.fix_job(id, type, lane, time) then
                return true
            end
            return id_suffix.has_key(id) and (repair_keyed.fix_job(id))
        end
        local differs, job = repair_keyed.fix_job(id, redis_key)
        if not job and not call.found and corrupt.is_word(id) then
            hooks.enters_lane(id, type, lane, rebuild.integer(time) or call.now)
            lanes.add(id, type, lane, rebuild.integer(time) or call.now) -- treated like a job without rules
        end
        return differs
    end)
end

-- Updates the lanes to the capacity of a key, unless a tick is about to do so.
--   applied: revision of the limits last applied to the key; a tick handles an outdated one.
local function reevaluate(job_key, applied)
    local due_us = tonumber(redis.call("ZSCORE", key.due_keys, job_key) or nil)
    if call.found or applied ~= gate.revision() or (due_us and due_us <= call.now_us) then
        return
    end
    key_state.cache().known[job_key] = nil
    local state, is_awaited = key_state.read(job_key), due_us and due_us < 2e18
    for _, sublane in pairs(state.sublanes) do
        is_awaited = is_awaited or sublane.standing ~= ""
    end
    if due_us and tonumber(state.turn_began or 0) > call.now_us then
        -- The clock was set back. A tick ends such a turn, but would only run at the scheduled end of the turn.
        redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, job_key)
    elseif not is_awaited or string.find(job_key, protocol.RATE_PREFIX, 1, true) ~= 1 then
        gate.reevaluate(job_key) -- only time changes a rate: a scheduled tick re-evaluates it
    end
end

-- Fixes the time at which a rate limit is fully available again, if no rate limit can have set it. The period of the
-- waiting jobs is not a bound, since a job with another period may have started before.
local function fix_rate(job_key)
    local _, period_us = capacity.rate_of(job_key, key_state.read(job_key).stated)
    if period_us then
        rebuild.compare("zset", key.rates, job_key, function(actual)
            local longest_us = math.max(period_us, protocol.MAX_RATE_PERIOD_US)
            local is_late = actual and tonumber(actual) > call.now_us + longest_us
            return is_late and call.text(call.now_us + period_us) or actual
        end)
    end
end

-- Fixes the last job of an unbounded sub-lane: after another client deleted the lane, it may contain only its heads.
local function fix_last(job_key, type, lane)
    local sublane = key.key_queue(job_key, type, lane)
    local value = rebuild.fields(key.key_state(job_key), type .. " " .. lane)
    if unbounded.is_value(value) and rebuild.exists(sublane, "zset") then
        repair_keyed.fix_job(redis.call("ZRANGE", sublane, -1, -1)[1], sublane)
    end
end

-- Quarantines the hash of a key scheduled for a tick, if it is not a hash.
function repair_keyed.fix_hash(job_key)
    rebuild.exists(key.key_state(job_key), "hash")
end

-- Fixes a key with waiting jobs.
function repair_keyed.fix(job_key, applied)
    fix_fields(job_key)
    for _, name in ipairs(redis.call("HKEYS", key.key_state(job_key))) do
        local type, lane = string.match(name, "^([^+%s]%S*) (%S+)$")
        if type then
            local sublane = key.key_queue(job_key, type, lane)
            rebuild.exists(key.lane(type, lane), "zset")
            rebuild.fix_sample(sublane, function(id)
                return (repair_keyed.fix_job(id, sublane))
            end)
            fix_last(job_key, type, lane)
            fix_written(job_key, type, lane)
        end
    end
    for _, redis_key in ipairs({ key.held(job_key), key.second_key_jobs(job_key), key.preemptible(job_key) }) do
        rebuild.fix_sample(redis_key, function(id)
            return (repair_keyed.fix_job(id, redis_key))
        end)
    end
    local is_valid = rebuild.integer(applied) and tonumber(applied) <= tonumber(gate.revision())
    rebuild.entry("zset", key.waiting_keys, job_key, applied, is_valid and applied or 0) -- for the next tick
    fix_rate(job_key)
    reevaluate(job_key, applied)
    if tenants.is_tenant_key(job_key) then
        rebuild.compare("zset", key.preemptible_tenants, job_key, evictions.number_of(job_key))
        repair_minimums.fix_tenant(job_key)
    end
end

-- repair_minimums: rebuilds minimum lanes and their heads in key `minimum_heads`. Admitted jobs of tenants below their
-- minimum must be in a minimum lane if their sub-lanes list them there.

-- Returns true if the sub-lane of its tenant lists job `id` in a minimum lane.
local function belongs_in_minimum_lane(id, type, lane)
    local job_keys = rules_codec.keys(rebuild.fields(key.job(id), "rules") or nil)
    local tenant = job_keys[#job_keys]
    local stored = tenant and repair_keyed.written(tenant.key, type, lane)
    return stored and stored.is_first and stored.standing == id
end

-- Fixes the minimum lanes of a type, and their heads.
function repair_minimums.fix(type)
    for _, lane in ipairs(lanes.NAMES) do
        rebuild.keep(key.minimum_lane(type, lane), function(id)
            return belongs_in_minimum_lane(id, type, lane)
        end)
    end
    repair_types.fix_heads(key.minimum_heads, type, minimums.place_of(type))
end

-- Fixes the minimum lanes for the sub-lanes of a tenant.
function repair_minimums.fix_tenant(job_key)
    for _, sublane in pairs(key_state.read(job_key).sublanes) do
        local type, lane, id = sublane.type, sublane.lane, sublane.standing
        local differs = sublane.is_first and id ~= ""
            and rebuild.compare("zset", key.minimum_lane(type, lane), id, key_state.enqueued_of(job_key, sublane, id))
        if differs or (sublane.is_first and not lanes.place(rebuild.fields(key.minimum_heads, type) or "", lane)) then
            repair_types.fix_heads(key.minimum_heads, type, minimums.place_of(type))
        end
    end
end

-- repair_shares: fixes the lists of fair shares (`fair_share`). If anything differs in a lane, its jobs are listed
-- again.

-- Returns true if job `id`, in its lane since `time`, is listed, or an older job of its tenant is the candidate.
local function is_listed(id, type, lane, time)
    local share_key = fair_share.key_of(id, lane)
    if not rebuild.exists(share_key, "string") then
        return false
    end
    local enqueued, candidate = fair_share.candidate_of(id, type, lane)
    return candidate and rebuild.score(key.turns(type, lane), enqueued .. " " .. candidate)
        and rebuild.score(key.lane(type, lane), candidate)
        and not score.is_older(tonumber(time), id, tonumber(enqueued), candidate)
        and (fair_share.has_tenant(id) or rebuild.score(key.untenanted(type, lane), id))
end

-- Fixes the lists of a lane.
function repair_shares.fix(type, lane)
    local lane_key, is_missing = key.lane(type, lane), false
    if not tenants.shares() or rebuild.fields(key.unlisted, type .. " " .. lane) then
        return
    end
    for _, redis_key in ipairs({ key.turns(type, lane), key.untenanted(type, lane) }) do
        rebuild.keep(redis_key, function(member)
            return rebuild.score(lane_key, string.match(member, "%S+$") or "")
        end)
    end
    rebuild.fix_sample(lane_key, function(id, time)
        is_missing = is_missing or corrupt.is_word(id) and rebuild.integer(time) and not is_listed(id, type, lane, time)
    end)
    if is_missing and rebuild.record_finding("turns of type " .. type .. " in lane " .. lane) then
        fair_share.list_again(type, lane, true)
    end
end
