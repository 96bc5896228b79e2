-- max_pending: limits the number of waiting jobs per type (`affinity_max_pending`). A publish contains the limits of
-- its types and a policy for excess jobs:
--   "refuse": all jobs of the publish are rejected, before any write.
--   "drop-oldest", "drop-newest": a job is dropped, and its end is reported to its caller.
-- Cost: about ten commands per type; about thirty per dropped job.

-- Returns the keys of `type`'s lanes and of its blocked jobs, if they have jobs.
local function lanes_of(type)
    local keys = {}
    for lane in lanes.each(redis.call("HGET", key.heads, type) or "") do
        keys[#keys + 1] = key.lane(type, lane)
    end
    if redis.call("EXISTS", key.kept_lanes) == 1 then
        local names, fields = lanes.NAMES, {}
        for nth, lane in ipairs(names) do
            fields[nth] = type .. " " .. lane
        end
        for nth, is_kept in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
            keys[#keys + 1] = is_kept and key.kept_back(type, names[nth]) or nil
        end
    end
    return keys
end

-- Reads the limits from `text`, and counts the waiting jobs of these types. The result is `call.bounds`, type -> a
-- table: most, full (the policy) and pending (the number of waiting jobs).
function max_pending.read(text)
    call.bounds = {}
    for type, most, full in string.gmatch(text, "([^%s=]+)=(%d+)/(%S+)") do
        local pending = 0
        for _, lane in ipairs(lanes_of(type)) do
            pending = pending + redis.call("ZCARD", lane)
        end
        call.bounds[type] = { most = tonumber(most), full = full, pending = pending }
    end
end

-- Returns true if `job` will add a waiting job. `seen`: ids of the earlier jobs of the publish.
local function adds_waiting_job(job, enqueued, seen, opened)
    if validate.first_invalid_field(job) or seen[job.id] or redis.call("EXISTS", key.job(job.id)) == 1 then
        return false
    end
    seen[job.id] = true
    local has_expired = job.expires_us ~= "" and tonumber(job.expires_us) <= 0
    if due_times.split(job.times) > 0 or has_expired or job_index.is_revoked(job.task_id) then
        return false
    end
    return not hooks.of(job.id).adds_none(job, enqueued, opened)
end

-- Returns the type of the first job that exceeds a limit with policy "refuse", or nil.
local function first_full(arguments)
    local seen, opened, added = {}, {}, {}
    for first = 1, #arguments - 1, job_fields.COUNT do
        local job, nth = job_fields.at(arguments, first), (first - 1) / job_fields.COUNT
        if adds_waiting_job(job, call.text(call.now_us + nth), seen, opened) then
            local type, bound = job.type, call.bounds[job.type]
            added[type] = (added[type] or 0) + 1
            if bound and bound.full == "refuse" and bound.pending + added[type] > bound.most then
                return type
            end
        end
    end
    return nil
end

-- Checks a publish against the limits in `text`. Returns the reply if the publish is rejected, or nil if all jobs fit.
function hooks.refuses(text, arguments)
    max_pending.read(text)
    local count = (#arguments - 1) / job_fields.COUNT
    local may_be_full = false
    for _, bound in pairs(call.bounds) do
        may_be_full = may_be_full or (bound.full == "refuse" and bound.pending + count > bound.most)
    end
    local type = may_be_full and first_full(arguments)
    if not type then
        return nil
    end
    redis.pcall("HINCRBY", key.counters, protocol.REFUSED_OF .. type, count) -- a full server rejects this command
    local reply = { protocol.IS_FULL, "" }
    for nth = 1, count do
        reply[2 * nth + 1] = type .. " " .. call.bounds[type].pending .. " " .. call.bounds[type].most
        reply[2 * nth + 2] = nth < count and protocol.IS_FULL or nil
    end
    return reply
end

-- Returns the longest waiting job of `type` among the first MAX_DROPPED_FROM jobs of each lane. Batches are excluded,
-- because they have several callers.
local function oldest_of(type)
    local oldest, oldest_us
    for _, lane in ipairs(lanes_of(type)) do
        local entries = redis.call("ZRANGE", lane, 0, protocol.MAX_DROPPED_FROM - 1, "WITHSCORES")
        for nth = 1, #entries, 2 do
            local id, rank_us = entries[nth], tonumber(entries[nth + 1])
            if (not oldest or rank_us <= oldest_us) and not hooks.of(id).STANDS_FOR_CALLS then
                local since_us = lanes.waits_since(id, rank_us)
                if not oldest or score.is_older(since_us, id, oldest_us, oldest) then
                    oldest, oldest_us = id, since_us
                end
            end
        end
    end
    return oldest
end

-- Drops a job if the stored job `job` with this `state` exceeds its type's limit. Returns the resulting state of `job`,
-- and true if another job was dropped. The caller then fills slots, because all earlier jobs may have expired.
function hooks.enforce_max_pending(job, state)
    local bound = call.bounds[job.type]
    if not bound or state ~= protocol.IS_PENDING then
        return state, false
    end
    bound.pending = bound.pending + 1 -- a dropped job still counts: each later job also exceeds the limit
    if bound.pending <= bound.most or bound.full == "refuse" then
        return state, false
    end
    local dropped = bound.full == "drop-oldest" and oldest_of(job.type) or job.id
    ends.waiting(dropped, "revoked")
    redis.call("HSET", key.job(dropped), "why", protocol.DROPPED .. ": " .. bound.most .. " jobs of its type waited")
    redis.call("HINCRBY", key.counters, protocol.DROPPED_OF .. job.type, 1)
    if dropped == job.id then
        return protocol.HAS_ENDED, false
    end
    return state, true
end
