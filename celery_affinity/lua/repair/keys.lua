-- keys: repairs job keys and shares.

-- repair_keyed: fixes the hashes of keys, which have their sub-lanes, and the jobs there (`projections`). Each waiting
-- job is in the sub-lane of its key, type and lane. It is also either in the lane or among the jobs that keys block. A
-- repair finds the job in any of these places and fixes the others. A tick then updates the lanes.

-- Returns true if job `id` is at a position that requires its admission by `job_key` in this sub-lane.
local function is_admitted(id, job_key, type, lane)
    local job, position = projections.read(id), math.huge
    for nth, stated in ipairs(job and job.waits and job.keys or {}) do
        position = stated.key == job_key and nth or position
    end
    return job and job.type == type and job.lane == lane and (job.admitted or 0) >= position
end

-- Returns the expected field of a sub-lane, for `rebuild.entry`: its first and its admitted job, or the state that all
-- are in the lane (`unbounded`).
--   standing: id of a job that is admitted; false if some job is not admitted; nil if unknown.
function repair_keyed.sublane_field(job_key, type, lane, standing)
    return function(actual, name)
        local sublane = key.key_queue(job_key, type, lane)
        local is_limited = rebuild.fields(key.key_state(job_key), "+" .. name) -- the lane has jobs still to be blocked
        local first, enqueued
        if rebuild.exists(sublane, "zset") then
            first, enqueued = rebuild.first_of(sublane)
        end
        if not first or unbounded.is_value(actual) and (standing ~= false or is_limited) then
            return first and actual
        elseif tenants.is_tenant_key(job_key) and (not actual or unbounded.is_value(actual)) and not call.found then
            redis.call("HSET", key.key_state(job_key), "+" .. name, redis.call("ZCARD", sublane))
        end
        local stored = key_state.sublane_of(type, lane, actual)
        if standing and standing ~= stored.standing and not is_limited then
            stored = { standing = standing }
        end
        local admitted = stored.standing
        local is_valid = admitted and redis.call("ZSCORE", sublane, admitted)
            and is_admitted(admitted, job_key, type, lane)
        return enqueued .. " " .. first .. key_state.standing_text(is_valid and admitted or "", stored.is_first)
    end
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
            local job = projections.read(value)
            is_valid = job and key_state.has(value, job_key)
                and (job.state == "pending" or rebuild.score(key.scheduled, value))
        else
            is_valid = lanes.is_lane(string.match(name, "^%S+ (%S+)$"))
        end
        return is_valid and value
    end)
end

-- Lets a tick re-evaluate a key that has changed.
function repair_keyed.reevaluate_later(job_key)
    if not call.found then
        fix_fields(job_key)
        unbounded.mark_for_count(job_key)
        key_state.cache().known[job_key] = nil
        redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, job_key)
    end
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

-- Quarantines the hash of a key scheduled for a tick, if it is not a hash.
function repair_keyed.fix_hash(job_key)
    rebuild.exists(key.key_state(job_key), "hash")
end

-- Fixes the sub-lane in field `name` of a key, if it is one: a sample of its jobs, and the admitted job, or the last
-- job of an unbounded sub-lane. After another client deleted the lane, it may contain only its heads.
local function fix_sublane(job_key, name, value)
    local type, lane = string.match(name, "^([^+%s]%S*) (%S+)$")
    if type then
        local sublane = key.key_queue(job_key, type, lane)
        rebuild.exists(key.lane(type, lane), "zset")
        projections.fix_some(sublane)
        local other = not unbounded.is_value(value) and key_state.sublane_of(type, lane, value).standing
            or rebuild.exists(sublane, "zset") and redis.call("ZRANGE", sublane, -1, -1)[1]
        if other and other ~= "" then
            projections.fix(other, sublane)
        end
        rebuild.compare("hash", key.key_state(job_key), name, repair_keyed.sublane_field(job_key, type, lane))
    end
end

-- Fixes a key with waiting jobs.
function repair_keyed.fix(job_key, applied)
    fix_fields(job_key)
    for name, value in pairs(rebuild.table_of(key.key_state(job_key))) do
        fix_sublane(job_key, name, value)
    end
    projections.fix_some(key.held(job_key))
    projections.fix_some(key.second_key_jobs(job_key))
    projections.fix_some(key.preemptible(job_key))
    local is_valid = rebuild.integer(applied) and tonumber(applied) <= tonumber(gate.revision())
    rebuild.entry("zset", key.waiting_keys, job_key, applied, is_valid and applied or 0) -- for the next tick
    fix_rate(job_key)
    reevaluate(job_key, applied)
    if tenants.is_tenant_key(job_key) then
        rebuild.compare("zset", key.preemptible_tenants, job_key, evictions.number_of(job_key))
    end
end

-- Fixes the minimum lanes of a type, and their heads.
function repair_keyed.fix_minimums(type)
    for _, lane in ipairs(lanes.NAMES) do
        projections.fix_some(key.minimum_lane(type, lane))
    end
    repair_types.fix_heads(key.minimum_heads, type, minimums.place_of(type))
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
