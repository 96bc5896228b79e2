-- victims: selects the running jobs that can be stopped for another tenant, and their order. A victim has
-- `preemptible=True`, and its worker can stop it. Its tenant stays at or above its minimum after this and all pending
-- evictions. Order: lowest priority first, queued before on-demand, then latest start first. Unstarted jobs are not
-- stopped, since that frees no slot. Prefetched jobs of a worker are recalled when a job is stopped there
-- (`stop_orders.order`). After an eviction, jobs that start on the same worker are exempt until the eviction is
-- `preemption_exempt` old. A job that was preempted before is exempt for `preemption_exempt` after each start, and
-- permanently after `preemption_max` preemptions.

-- Returns those evictions of a worker that are younger than `preemption_exempt`: a list of times (µs, strings).
--   text: field of the worker's hash with all times, or nil or false.
local function recent_stops(text, settings)
    local times, since_us = {}, call.now_us - settings.preemption_exempt_us
    for time in string.gmatch(text or "", "%d+") do
        times[#times + 1] = tonumber(time) > since_us and time or nil
    end
    return times
end

function victims.note_stop(worker, settings)
    local times = recent_stops(redis.call("HGET", key.worker(worker), "preempted"), settings)
    times[#times + 1] = call.now
    redis.call("HSET", key.worker(worker), "preempted", table.concat(times, " "))
end

-- Returns up to `max` members of a sorted set with their scores, highest first.
local function highest(name, max)
    return redis.call("ZREVRANGEBYSCORE", name, "+inf", "-inf", "WITHSCORES", "LIMIT", 0, max)
end

-- Returns the number of jobs that can be stopped before their tenant reaches its minimum: tenant key -> number.
-- Only includes the tenants with the most preemptible jobs.
local function spare_per_tenant(stops)
    local spare, number = {}, 0
    local tenant_scores = highest(key.preemptible_tenants, protocol.MAX_GIVING_LOOKED_AT)
    for i = 1, #tenant_scores, 2 do
        local tenant_key = tenant_scores[i]
        local spare_jobs = key_state.held(tenant_key, key_state.read(tenant_key)) - (stops.lost[tenant_key] or 0)
            - tenants.quota_of(tenants.name_of(tenant_key)).min
        if spare_jobs > 0 and number < protocol.MAX_GIVING then
            spare[tenant_key], number = spare_jobs, number + 1
        end
    end
    return spare
end

-- Returns job `id` with the fencing token `fence` as a candidate table. Returns nil if the job cannot be stopped,
-- regardless of its worker.
local function read_candidate(id, fence, tenant_key, settings)
    local worker, started, acked, lane, stop, preemptions =
        unpack(redis.call("HMGET", key.job(id), "worker", "started", "acked", "lane", "stop", "preemptions"))
    local started_us, times = tonumber(started or nil), tonumber(preemptions or nil) or 0
    local is_exempt = times > 0 and started_us and call.now_us - started_us < settings.preemption_exempt_us
    if not (worker and started_us and lanes.is_lane(lane)) or acked or is_exempt
        or times >= settings.preemption_max or string.match(stop or "", "^%d+") == fence then
        return nil
    end
    local priority = lanes.priority(lane)
    return {
        id = id, its_key = tenant_key, worker = worker, fence = fence, started_us = started_us,
        on_demand = lanes.is_on_demand(lane) and 1 or 0,
        priority = settings.priority_reversed == 1 and protocol.MAX_PRIORITY - priority or priority,
    }
end

local function is_preferred(one, other)
    if one.priority ~= other.priority then
        return one.priority < other.priority
    elseif one.on_demand ~= other.on_demand then
        return one.on_demand < other.on_demand
    elseif one.started_us ~= other.started_us then
        return one.started_us > other.started_us
    end
    return one.id < other.id
end

-- Returns the candidates in order: the latest preemptible claims of tenants above their minimum.
local function candidates_of(stops, settings)
    local candidates = {}
    for tenant_key in pairs(stops.spare) do
        local claimed = highest(key.preemptible(tenant_key), protocol.MAX_VICTIMS)
        for i = 1, #claimed, 2 do
            candidates[#candidates + 1] = read_candidate(claimed[i], claimed[i + 1], tenant_key, settings)
        end
    end
    table.sort(candidates, is_preferred)
    return candidates
end

-- Returns true if `worker` holds at least `number` unstarted jobs, which it can return. An invocation examines
-- MAX_AHEAD_LOOKED_AT claims, rounded up to a whole worker.
local function holds_ahead(stops, worker, number)
    local unstarted = 0
    if stops.looked_at < protocol.MAX_AHEAD_LOOKED_AT then
        local ids = redis.call("HKEYS", key.claims(worker))
        stops.looked_at = stops.looked_at + #ids
        for _, id in ipairs(ids) do
            unstarted = redis.call("HEXISTS", key.job(id), "started") == 0 and unstarted + 1 or unstarted
        end
    end
    return unstarted >= number
end

-- Returns the state of a worker, as a table.
--   types: types whose jobs would get a freed slot, or "".
--   stops: tasks that it can stop.
--   exempt_since_us: start time from which its jobs are exempt: the time of the first recent eviction, or `math.huge`.
--   number_ahead: number of prefetched jobs.
local function read_worker(stops, worker, settings)
    local fields = free_slots.row(worker, "types", "stops", "preempted")
    local types, stoppable, preempted = unpack(fields, 7, 9)
    local takes_jobs = types and stoppable and fields[free_slots.PROFILE] and free_slots.takes_jobs(fields)
    local number_ahead = takes_jobs and math.max(0, -free_slots.remaining(worker, fields)) or 0
    local frees_slots = takes_jobs and (number_ahead == 0 or holds_ahead(stops, worker, number_ahead))
    return {
        types = frees_slots and types or "", stops = stoppable, number_ahead = number_ahead,
        exempt_since_us = math.min(math.huge, unpack(recent_stops(preempted, settings))),
    }
end

-- Returns true if a worker that can stop the tasks `stops` can stop the task of job `id`.
local function can_stop(stops, id)
    if stops == protocol.FORCE then
        return true
    end
    local name = redis.call("HGET", key.job(id), "name")
    for encoded_name in string.gmatch(stops, "%S+") do
        if texts.decoded(encoded_name) == name then
            return true
        end
    end
    return false
end

-- Returns true if stopping a candidate frees a slot that serves `type`.
local function frees(candidate, type, stops, settings)
    if stops.spare[candidate.its_key] <= 0 then
        return false
    end
    local worker_state = stops.workers[candidate.worker] or read_worker(stops, candidate.worker, settings)
    stops.workers[candidate.worker] = worker_state
    return texts.has_word(worker_state.types, type) and candidate.started_us < worker_state.exempt_since_us
        and can_stop(worker_state.stops, candidate.id)
end

-- Returns the next job to stop for a slot that serves `type`, or nil.
--   stops: result of `stop_orders.review`; also caches the data read here, once per invocation.
-- Fields of the job: types and number_ahead of its worker. The number is 0 for the next job of the same worker.
function victims.next_of(stops, type, settings)
    if not stops.spare then
        stops.spare, stops.workers, stops.has_none, stops.looked_at = spare_per_tenant(stops), {}, {}, 0
        stops.candidates = candidates_of(stops, settings)
    end
    for nth, candidate in ipairs(stops.has_none[type] and {} or stops.candidates) do
        if frees(candidate, type, stops, settings) then
            table.remove(stops.candidates, nth)
            stops.spare[candidate.its_key] = stops.spare[candidate.its_key] - 1
            local worker_state = stops.workers[candidate.worker]
            candidate.types, candidate.number_ahead, worker_state.number_ahead =
                worker_state.types, worker_state.number_ahead, 0
            return candidate
        end
    end
    stops.has_none[type] = true
    return nil
end

-- stop_orders: eviction orders, kept until the claims of the victims have ended. Key `stop_orders` has per victim: the
-- claim's fencing token, the worker, the benefiting tenant and type, the time of the order (µs), and the grace period
-- (ms). Field `stop` of the job hash has the token and the tenant. It is kept: no claim is stopped twice.

-- Returns the control message for a worker.
local function control_message(stop)
    return "\n" .. protocol.PREEMPT_SIGN .. " " .. stop.id .. " " .. stop.fence .. " " .. stop.grace_ms
end

-- Orders the eviction of `victim` for a tenant and its jobs of `type`. The worker's prefetched jobs would get the slot,
-- so they are recalled.
function stop_orders.order(victim, tenant_key, type, settings)
    local stop = { id = victim.id, fence = victim.fence, grace_ms = math.floor(settings.preemption_grace_us / 1000) }
    redis.call("RPUSH", key.inbox(victim.worker), control_message(stop))
    if victim.number_ahead > 0 then
        prefetch.request_return(victim.worker, victim.number_ahead, workers.split(victim.types))
    end
    redis.call("HSET", key.stop_orders, stop.id, table.concat(
        { stop.fence, victim.worker, tenant_key, type, call.now, stop.grace_ms }, " "))
    redis.call("HSET", key.job(stop.id), "stop", stop.fence .. " " .. tenant_key)
end

-- Returns the orders, oldest first.
local function read_orders()
    local orders, fields = {}, redis.call("HGETALL", key.stop_orders)
    for i = 1, #fields, 2 do
        local fence, worker, tenant_key, type, ordered, grace_ms =
            string.match(fields[i + 1], "^(%d+) (%S+) (%S+) (%S+) (%d+) (%d+)$")
        if fence and claims.held(worker, fields[i], fence) then
            orders[#orders + 1] = {
                id = fields[i], fence = fence, worker = worker, its_key = tenant_key, type = type,
                ordered_us = tonumber(ordered), grace_ms = grace_ms,
            }
        else
            redis.call("HDEL", key.stop_orders, fields[i]) -- another client deleted the claim or overwrote the order
        end
    end
    table.sort(orders, function(one, other)
        return one.ordered_us < other.ordered_us or (one.ordered_us == other.ordered_us and one.id < other.id)
    end)
    return orders
end

-- Returns the number of valid orders for a tenant, or for a tenant and a type.
local function number_for(stops, tenant_key, type)
    return stops.of[type and tenant_key .. " " .. type or tenant_key] or 0
end

-- Adds an order to stop a job of the tenant `victim_tenant_key`. An invalid order has no `tenant_key` and no `type`.
local function add(stops, victim_tenant_key, tenant_key, type)
    stops.number = stops.number + 1
    stops.lost[victim_tenant_key] = (stops.lost[victim_tenant_key] or 0) + 1
    for _, name in ipairs(tenant_key and { tenant_key, tenant_key .. " " .. type } or {}) do
        stops.of[name] = (stops.of[name] or 0) + 1
    end
end

-- Reviews each order. An order is valid if its worker has time left to answer, and its tenant still needs the slot for
-- jobs of the type. Withdraws an invalid order unless the worker has read the control message. After the time to
-- answer, field `stop` of the job hash is kept, so another job is chosen.
-- Returns the remaining orders, as a table.
--   number: number of orders.
--   number_for, add: functions above.
--   lost: tenant key -> number of the tenant's jobs that are being stopped.
function stop_orders.review(since, settings)
    local stops = { number = 0, of = {}, lost = {}, number_for = number_for, add = add }
    for _, stop in ipairs(read_orders()) do
        local needs, missing = preemptors.wanted(stop.its_key, since, settings)
        local needed = 0
        for _, need in ipairs(needs) do
            needed = need.type == stop.type and need.number or needed
        end
        local answer_time_us = tonumber(stop.grace_ms) * 1000 + protocol.ANSWERED_WITHIN_US
        local is_late = call.now_us - stop.ordered_us >= answer_time_us
        local is_needed = not is_late and number_for(stops, stop.its_key) < missing
            and number_for(stops, stop.its_key, stop.type) < needed
        if is_needed or redis.call("LREM", key.inbox(stop.worker), 1, control_message(stop)) == 0 then -- it was read
            -- "": another client deleted the job
            add(stops, key_state.tenant_key_of(stop.id) or "", is_needed and stop.its_key, stop.type)
        else
            redis.call("HDEL", key.stop_orders, stop.id)
            if not is_late then
                redis.call("HDEL", key.job(stop.id), "stop")
            end
        end
    end
    return stops
end
