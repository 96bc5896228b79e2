-- victims: which running jobs may be stopped for another tenant, and which of these first. A job must say so
-- (`preemptible=True`), run on a worker that can stop it, and be of a tenant above its minimum, also after the stop and
-- all that are under way. The job of the lowest priority goes first, queued before on demand, then the one that started
-- last. A job that has not started, since it is ahead of the slots of its worker or has lent its own, frees none.
-- No slot is vacated twice within `preemption_exempt`: of a worker, no job is stopped that started after another was
-- stopped there so lately; nor is a job that was stopped before, so early in a further run, or more often than
-- `preemption_max`.

-- RETURNS the key of the tenant of a job; "" if somebody deleted it.
function victims.key_of(id)
    local its_keys = key_rows.keys_of(id)
    local last = its_keys[#its_keys]
    return last and last.key or ""
end

-- Notes in the row of a worker that a job was stopped there.
function victims.note_stop(worker, settings)
    local its_row, since_us = key.worker(worker), call.now_us - settings.preemption_exempt_us
    local times = {}
    for at in string.gmatch(redis.call("HGET", its_row, "preempted") or "", "%d+") do
        times[#times + 1] = tonumber(at) > since_us and at or nil
    end
    times[#times + 1] = call.now
    redis.call("HSET", its_row, "preempted", table.concat(times, " "))
end

-- RETURNS at most `most` members of a sorted set, those with the highest scores, the highest first.
local function last_of(name, most)
    return redis.call("ZREVRANGEBYSCORE", name, "+inf", "-inf", "LIMIT", 0, most)
end

-- RETURNS how many jobs of each tenant may be stopped before it is at its minimum: its_key -> number; of those with the
-- most jobs that may be stopped at all.
local function spare_of(stops)
    local spare, number = {}, 0
    for _, its_key in ipairs(last_of(key.giving, protocol.MOST_GIVING_LOOKED_AT)) do
        local left = key_rows.held(its_key, key_rows.read(its_key)) - (stops.lost[its_key] or 0)
            - tenants.min_of(its_key)
        if left > 0 and number < protocol.MOST_GIVING then
            spare[its_key], number = left, number + 1
        end
    end
    return spare
end

local FIELDS = { "worker", "fence", "started", "acked", "lane", "name", "stop", "preemptions", "rules" }

-- RETURNS job `id` as a candidate, a table; nil if it may not be stopped, on whatever worker.
local function candidate(id, its_key, settings)
    local worker, fence, started, acked, lane, name, stop, preemptions, rules =
        unpack(redis.call("HMGET", key.job(id), unpack(FIELDS)))
    local started_us, times = tonumber(started or nil), tonumber(preemptions or 0) or 0
    local its_keys = rule_texts.keys(rules or nil)
    local is_exempt = times > 0 and started_us and call.now_us - started_us < settings.preemption_exempt_us
    if not (worker and fence and started_us and lanes.is_one(lane)) or acked or is_exempt
        or times >= settings.preemption_max or not its_keys[#its_keys].is_preemptible
        or string.match(stop or "", "^%d+") == fence then
        return nil
    end
    local priority = lanes.priority(lane)
    return {
        id = id, its_key = its_key, worker = worker, fence = fence, started_us = started_us, name = name or "",
        on_demand = lanes.is_on_demand(lane) and 1 or 0,
        priority = settings.priority_reversed == 1 and protocol.MAX_PRIORITY - priority or priority,
    }
end

local function goes_before(one, other)
    for _, name in ipairs({ "priority", "on_demand" }) do
        if one[name] ~= other[name] then
            return one[name] < other[name]
        end
    end
    if one.started_us ~= other.started_us then
        return one.started_us > other.started_us
    end
    return one.id < other.id
end

-- RETURNS the candidates, the first one first: of tenants above their minimum, the last claims that may be stopped.
local function candidates_of(stops, settings)
    local found = {}
    for its_key in pairs(stops.spare) do
        for _, id in ipairs(last_of(key.preemptible(its_key), protocol.MOST_VICTIMS)) do
            found[#found + 1] = candidate(id, its_key, settings)
        end
    end
    table.sort(found, goes_before)
    return found
end

-- RETURNS what the row of a worker says, a table. takes: type -> true, of the types whose jobs would get a slot that
-- comes free; stops: name of a task that the worker can stop -> true; stops_all; stopped_us: when the first of the jobs
-- was stopped that were stopped here so lately that their slots are exempt, nil if none was.
local function read_worker(worker, settings)
    local row = free_slots.row(worker, "types", "stops", "preempted")
    local its = { takes = {}, stops = {}, stops_all = row[8] == protocol.FORCE }
    local takes_jobs = row[free_slots.PROFILE] and free_slots.takes_jobs(row) and free_slots.left(worker, row) >= 0
    for _, type in ipairs(takes_jobs and workers.split(row[7]) or {}) do
        its.takes[type] = true
    end
    for name in string.gmatch(row[8] or "", "%S+") do
        its.stops[texts.decoded(name)] = true
    end
    for at in string.gmatch(row[9] or "", "%d+") do
        if not its.stopped_us and tonumber(at) > call.now_us - settings.preemption_exempt_us then
            its.stopped_us = tonumber(at)
        end
    end
    return its
end

-- RETURNS the job to be stopped next for a slot that serves `type`; nil if there is none. `stops`: as `vacating.settle`
-- returns it, with what is read here once in a call.
function victims.next_of(stops, type, settings)
    if not stops.spare then
        stops.spare, stops.workers = spare_of(stops), {}
        stops.candidates = candidates_of(stops, settings)
    end
    for nth, each in ipairs(stops.candidates) do
        local its = stops.workers[each.worker] or read_worker(each.worker, settings)
        stops.workers[each.worker] = its
        if stops.spare[each.its_key] > 0 and its.takes[type] and (its.stops_all or its.stops[each.name])
            and not (its.stopped_us and its.stopped_us <= each.started_us) then
            table.remove(stops.candidates, nth)
            stops.spare[each.its_key] = stops.spare[each.its_key] - 1
            return each
        end
    end
    return nil
end
