-- max_pending: at most so many jobs of a type wait (`affinity_max_pending`). A publish says the bounds of its types, and
-- what happens to a job beyond one: "refuse": all jobs of the call are refused, before any is written; "drop-oldest",
-- "drop-newest": a job is dropped, and its caller told.
-- Cost: about ten commands for a type; about thirty for a job that is dropped.

-- RETURNS the keys of all lanes of `type`, and of what is kept back from them, that have jobs.
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

-- Reads the bounds in `text`, and how many jobs of these types wait, into `call.bounds`: type -> a table: most; full:
-- what happens beyond; pending: how many wait.
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

-- RETURNS whether `job` will be one more that waits. `seen`: ids of the jobs before it in the call of publish.
local function is_one_more(job, enqueued, seen, opened)
    if validate.first_invalid_field(job) or seen[job.id] or redis.call("EXISTS", key.job(job.id)) == 1 then
        return false
    end
    seen[job.id] = true
    local has_expired = job.expires_us ~= "" and tonumber(job.expires_us) <= 0
    if tonumber(job.delay_us) > 0 or has_expired or job_index.is_revoked(job.task_id) then
        return false
    end
    return not hooks.of(job.id).adds_none(job, enqueued, opened)
end

-- RETURNS the type of the first of these jobs beyond a bound that refuses; nil for none.
local function first_full(arguments)
    local seen, opened, more = {}, {}, {}
    for first = 1, #arguments - 1, job_fields.COUNT do
        local job, nth = job_fields.at(arguments, first), (first - 1) / job_fields.COUNT
        if is_one_more(job, call.text(call.now_us + nth), seen, opened) then
            local type, bound = job.type, call.bounds[job.type]
            more[type] = (more[type] or 0) + 1
            if bound and bound.full == "refuse" and bound.pending + more[type] > bound.most then
                return type
            end
        end
    end
    return nil
end

-- A publish says bounds of types, in `text`. RETURNS its reply if it is refused, since one of its jobs finds no room;
-- nil if all do.
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
    redis.pcall("HINCRBY", key.counters, protocol.REFUSED_OF .. type, count) -- a full server refuses that
    local reply = { protocol.IS_FULL, "" }
    for nth = 1, count do
        reply[2 * nth + 1] = type .. " " .. call.bounds[type].pending .. " " .. call.bounds[type].most
        reply[2 * nth + 2] = nth < count and protocol.IS_FULL or nil
    end
    return reply
end

-- RETURNS the job of `type` that waits longest, of the first MOST_DROPPED_FROM in each lane; no batch, which has many
-- callers.
local function oldest_of(type)
    local oldest, oldest_us
    for _, lane in ipairs(lanes_of(type)) do
        local some = redis.call("ZRANGE", lane, 0, protocol.MOST_DROPPED_FROM - 1, "WITHSCORES")
        for nth = 1, #some, 2 do
            local id, enqueued_us = some[nth], tonumber(some[nth + 1])
            local is_older = not oldest or score.is_older(enqueued_us, id, oldest_us, oldest)
            if is_older and not hooks.of(id).STANDS_FOR_CALLS then
                oldest, oldest_us = id, enqueued_us
            end
        end
    end
    return oldest
end

-- Drops a job if `job`, which was written with this `state`, is one too many. RETURNS the state of `job` then; and
-- whether another job was dropped: then the caller fills slots, since all jobs that waited before may have expired.
function hooks.enforce_max_pending(job, state)
    local bound = call.bounds[job.type]
    if not bound or state ~= protocol.IS_PENDING then
        return state, false
    end
    bound.pending = bound.pending + 1 -- one that is dropped counts on: after it each further one is too many as well
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
