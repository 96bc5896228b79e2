-- bounds: at most so many jobs of a type wait. A publish says the bounds of its types, and what becomes of a job beyond
-- one: all jobs of the call are refused, or a job is dropped, and its caller told.
-- Cost: some ten commands for a type; for a job that is dropped, some thirty.

-- RETURNS the keys of all lanes of `type`, and of what is kept out of them, that have jobs.
local function lanes_of(type)
    local keys = {}
    for lane in lanes.each(redis.call("HGET", key.heads, type) or "") do
        keys[#keys + 1] = key.lane(type, lane)
    end
    if redis.call("EXISTS", key.kept_lanes) == 1 then
        local names, fields = {}, {} -- of all lanes that a type can have
        for nth = 0, 2 * protocol.MAX_PRIORITY + 1 do
            names[nth + 1] = lanes.name(nth % 2 == 0 and "queued" or "demand", math.floor(nth / 2))
            fields[nth + 1] = type .. " " .. names[nth + 1]
        end
        for nth, is_kept in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
            keys[#keys + 1] = is_kept and key.kept_back(type, names[nth]) or nil
        end
    end
    return keys
end

-- Reads the bounds that a publish says, and how many jobs of these types wait: `call.bounds`: type -> most, full: what
-- then happens, pending: how many wait.
function bounds.read(text)
    call.bounds = {}
    for type, most, full in string.gmatch(text, "([^%s=]+)=(%d+)/(%S+)") do
        local pending = 0
        for _, lane in ipairs(lanes_of(type)) do
            pending = pending + redis.call("ZCARD", lane)
        end
        call.bounds[type] = { most = tonumber(most), full = full, pending = pending }
    end
end

-- RETURNS whether `job`, a call that merges, is going to join others. `opened`: what calls of this publish are going to
-- find, by what they merge by.
local function joins(job, opened)
    local field = callers.place(job.type, job.rules, job.task_name)
    local found = opened[field]
    if not found then
        local id, row = merging.find(field)
        found = id and not row.is_alone and { calls = row.calls, bytes = tonumber(row.bytes) or math.huge }
    end
    if found and merging.has_room(found.calls, found.bytes, #job.message, job.rules) then
        opened[field] = { calls = found.calls + 1, bytes = found.bytes + #job.message }
        return true
    end
    opened[field] = { calls = 1, bytes = #job.message }
    return false
end

-- RETURNS whether `job` is going to be one more that waits. `seen`: ids of jobs of this publish.
local function is_one_more(job, enqueued, seen, opened)
    if job_check.bad(job) or seen[job.id] or redis.call("EXISTS", key.job(job.id)) == 1 then
        return false
    end
    seen[job.id] = true
    local has_expired = job.expires_us ~= "" and tonumber(job.expires_us) <= 0
    if tonumber(job.delay_us) > 0 or has_expired or find_by.is_revoked(job.task_id) then
        return false
    elseif job.rules ~= "" and marks.of(job.id) == protocol.MERGES then
        local lane = lanes.name(job.mode, job.priority)
        return not joins(job, opened) and not merging.would_wait(lane, enqueued, job.rules, #job.message)
    end
    return true
end

-- RETURNS the type of the first of these jobs that finds no room; nil if all do.
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

-- RETURNS the reply of the publish of these jobs, if one of them finds no room: none of them is written.
function bounds.full(arguments)
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

-- RETURNS the job of `type` that waits longest, among the first of each lane. A batch stands for many callers: it is
-- none of those.
local function oldest_of(type)
    local oldest, oldest_us
    for _, lane in ipairs(lanes_of(type)) do
        local some = redis.call("ZRANGE", lane, 0, protocol.MOST_DROPPED_FROM - 1, "WITHSCORES")
        for nth = 1, #some, 2 do
            local id, enqueued_us = some[nth], tonumber(some[nth + 1])
            local is_older = not oldest or enqueued_us < oldest_us or (enqueued_us == oldest_us and id < oldest)
            if marks.of(id) ~= protocol.BATCH and is_older then
                oldest, oldest_us = id, enqueued_us
            end
        end
    end
    return oldest
end

-- Drops a job if `job`, which was written with this `state`, is one too many. RETURNS the state of `job` then, and
-- whether another one was dropped: that may have been all that waited before, since it had expired.
function bounds.keep(job, state)
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
