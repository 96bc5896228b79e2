-- victims: which running jobs may be stopped for another tenant, and which of these first. A job must say so
-- (`preemptible=True`), run on a worker that can stop it, and be of a tenant that stays at its minimum or above after
-- this stop and all that are under way. The job of the lowest priority is stopped first, queued before on demand, then
-- the job that started last. A job that has not started is not stopped: that would free no slot. Jobs that its worker
-- holds ahead of its slots go back when a job is stopped there (`stop_orders.order`).
-- After a stop, the jobs that start on the same worker are exempt until the stop is `preemption_exempt` old. A job that
-- was stopped before is exempt for `preemption_exempt` from each further start, and for good once it was stopped
-- `preemption_max` times.

-- RETURNS the key of the tenant of a job; "" if somebody deleted it.
function victims.key_of(id)
    local its_keys = key_state.keys_of(id)
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

-- RETURNS at most `most` members of a sorted set and their scores, those with the highest scores, the highest first.
local function last_of(name, most)
    return redis.call("ZREVRANGEBYSCORE", name, "+inf", "-inf", "WITHSCORES", "LIMIT", 0, most)
end

-- RETURNS how many jobs of each tenant may be stopped before it is at its minimum: its_key -> number; of those with the
-- most jobs that may be stopped at all.
local function spare_of(stops)
    local spare, number = {}, 0
    local tenants_with_some = last_of(key.giving, protocol.MOST_GIVING_LOOKED_AT)
    for i = 1, #tenants_with_some, 2 do
        local its_key = tenants_with_some[i]
        local left = key_state.held(its_key, key_state.read(its_key)) - (stops.lost[its_key] or 0)
            - tenants.quota_of(tenants.name_of(its_key)).min
        if left > 0 and number < protocol.MOST_GIVING then
            spare[its_key], number = left, number + 1
        end
    end
    return spare
end

-- RETURNS job `id`, whose claim has the number `fence`, as a candidate, a table; nil if it may not be stopped, whatever
-- its worker can do.
local function candidate(id, fence, its_key, settings)
    local worker, started, acked, lane, stop, preemptions =
        unpack(redis.call("HMGET", key.job(id), "worker", "started", "acked", "lane", "stop", "preemptions"))
    local started_us, times = tonumber(started or nil), tonumber(preemptions or nil) or 0
    local is_exempt = times > 0 and started_us and call.now_us - started_us < settings.preemption_exempt_us
    if not (worker and started_us and lanes.is_one(lane)) or acked or is_exempt
        or times >= settings.preemption_max or string.match(stop or "", "^%d+") == fence then
        return nil
    end
    local priority = lanes.priority(lane)
    return {
        id = id, its_key = its_key, worker = worker, fence = fence, started_us = started_us,
        on_demand = lanes.is_on_demand(lane) and 1 or 0,
        priority = settings.priority_reversed == 1 and protocol.MAX_PRIORITY - priority or priority,
    }
end

local function goes_before(one, other)
    if one.priority ~= other.priority then
        return one.priority < other.priority
    elseif one.on_demand ~= other.on_demand then
        return one.on_demand < other.on_demand
    elseif one.started_us ~= other.started_us then
        return one.started_us > other.started_us
    end
    return one.id < other.id
end

-- RETURNS the candidates, the first one first: of tenants above their minimum, the last claims that may be stopped.
local function candidates_of(stops, settings)
    local found = {}
    for its_key in pairs(stops.spare) do
        local claimed = last_of(key.preemptible(its_key), protocol.MOST_VICTIMS)
        for i = 1, #claimed, 2 do
            found[#found + 1] = candidate(claimed[i], claimed[i + 1], its_key, settings)
        end
    end
    table.sort(found, goes_before)
    return found
end

-- RETURNS the time from which on jobs that start on a worker are exempt: when the first of the stops was that are not
-- `preemption_exempt` old yet; `math.huge` if there is none. `text`: the times of stops on this worker.
local function exempt_since(text, settings)
    local first_us = math.huge
    for at in string.gmatch(text or "", "%d+") do
        if tonumber(at) > call.now_us - settings.preemption_exempt_us then
            first_us = math.min(first_us, tonumber(at))
        end
    end
    return first_us
end

-- RETURNS whether `worker` holds so many jobs that have not started: it can give them back. A call looks at
-- MOST_AHEAD_LOOKED_AT claims, or at those of one worker more.
local function holds_ahead(stops, worker, number)
    local found = 0
    if stops.looked_at < protocol.MOST_AHEAD_LOOKED_AT then
        local ids = redis.call("HKEYS", key.claims(worker))
        stops.looked_at = stops.looked_at + #ids
        for _, id in ipairs(ids) do
            found = redis.call("HEXISTS", key.job(id), "started") == 0 and found + 1 or found
        end
    end
    return found >= number
end

-- RETURNS what the row of a worker says, a table. types: whose jobs would get a slot that comes free, "" for none;
-- stops: which tasks it can stop; exempt_since_us: see `exempt_since`; number_ahead: of jobs that it holds ahead of its
-- slots.
local function read_worker(stops, worker, settings)
    local row = free_slots.row(worker, "types", "stops", "preempted")
    local types, its_stops, preempted = unpack(row, 7, 9)
    local takes_jobs = types and its_stops and row[free_slots.PROFILE] and free_slots.takes_jobs(row)
    local number_ahead = takes_jobs and math.max(0, -free_slots.left(worker, row)) or 0
    local frees_slots = takes_jobs and (number_ahead == 0 or holds_ahead(stops, worker, number_ahead))
    return {
        types = frees_slots and types or "", stops = its_stops, exempt_since_us = exempt_since(preempted, settings),
        number_ahead = number_ahead,
    }
end

-- RETURNS whether a worker that `stops` such tasks can stop that of job `id`.
local function can_stop(stops, id)
    if stops == protocol.FORCE then
        return true
    end
    local name = redis.call("HGET", key.job(id), "name")
    for word in string.gmatch(stops, "%S+") do
        if texts.decoded(word) == name then
            return true
        end
    end
    return false
end

-- RETURNS whether the stop of a candidate frees a slot that serves `type`.
local function frees(each, type, stops, settings)
    if stops.spare[each.its_key] <= 0 then
        return false
    end
    local its = stops.workers[each.worker] or read_worker(stops, each.worker, settings)
    stops.workers[each.worker] = its
    return texts.has_word(its.types, type) and each.started_us < its.exempt_since_us and can_stop(its.stops, each.id)
end

-- RETURNS the job to be stopped next for a slot that serves `type`; nil if there is none. types, number_ahead: of its
-- worker; the number is 0 for the next job of the same worker. `stops`: as `stop_orders.review`
-- returns it, with what is read here once in a call.
function victims.next_of(stops, type, settings)
    if not stops.spare then
        stops.spare, stops.workers, stops.has_none, stops.looked_at = spare_of(stops), {}, {}, 0
        stops.candidates = candidates_of(stops, settings)
    end
    for nth, each in ipairs(stops.has_none[type] and {} or stops.candidates) do
        if frees(each, type, stops, settings) then
            table.remove(stops.candidates, nth)
            stops.spare[each.its_key] = stops.spare[each.its_key] - 1
            local its = stops.workers[each.worker]
            each.types, each.number_ahead, its.number_ahead = its.types, its.number_ahead, 0
            return each
        end
    end
    stops.has_none[type] = true
    return nil
end
