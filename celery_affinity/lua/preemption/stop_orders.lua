-- stop_orders: orders to stop jobs, until the claims of these have ended. Key `vacating` has of each such job: the fencing
-- number of the claim, the worker, the tenant and the type for which it is stopped, the time of the order, µs, and the
-- grace, ms. Field `stop` of the job's row has the number and the tenant: it stays, so that no claim is stopped twice.

-- RETURNS the sign that a worker reads.
local function sign_of(stop)
    return "\n" .. protocol.PREEMPT_SIGN .. " " .. stop.id .. " " .. stop.fence .. " " .. stop.grace_ms
end

-- Orders the stop of `victim` for the tenant `its_key` and its jobs of `type`. Jobs that its worker holds ahead of its
-- slots would get the slot: these are asked back.
function stop_orders.order(victim, its_key, type, settings)
    local stop = { id = victim.id, fence = victim.fence, grace_ms = math.floor(settings.preemption_grace_us / 1000) }
    redis.call("RPUSH", key.inbox(victim.worker), sign_of(stop))
    if victim.number_ahead > 0 then
        prefetch.ask_back(victim.worker, victim.number_ahead, workers.split(victim.types))
    end
    redis.call("HSET", key.vacating, stop.id, table.concat(
        { stop.fence, victim.worker, its_key, type, call.now, stop.grace_ms }, " "))
    redis.call("HSET", key.job(stop.id), "stop", stop.fence .. " " .. its_key)
end

-- RETURNS the orders, the first ones first.
local function read()
    local found, all = {}, redis.call("HGETALL", key.vacating)
    for i = 1, #all, 2 do
        local fence, worker, its_key, type, ordered, grace_ms =
            string.match(all[i + 1], "^(%d+) (%S+) (%S+) (%S+) (%d+) (%d+)$")
        if fence and claims.held(worker, all[i], fence) then
            found[#found + 1] = {
                id = all[i], fence = fence, worker = worker, its_key = its_key, type = type,
                ordered_us = tonumber(ordered), grace_ms = grace_ms,
            }
        else
            redis.call("HDEL", key.vacating, all[i]) -- somebody deleted the claim, or overwrote this
        end
    end
    table.sort(found, function(one, other)
        return one.ordered_us < other.ordered_us or (one.ordered_us == other.ordered_us and one.id < other.id)
    end)
    return found
end

local function number_for(stops, its_key, type)
    return stops.of[type and its_key .. " " .. type or its_key] or 0
end

local function add_for(stops, its_key, type)
    for _, name in ipairs({ its_key, its_key .. " " .. type }) do
        stops.of[name] = (stops.of[name] or 0) + 1
    end
end

-- A job of the tenant `victims_key` is being stopped.
local function note(stops, victims_key)
    stops.number = stops.number + 1
    stops.lost[victims_key] = (stops.lost[victims_key] or 0) + 1
end

local function add(stops, victims_key, its_key, type)
    add_for(stops, its_key, type)
    note(stops, victims_key)
end

-- Looks at each order: whether it counts, because its worker has time left to answer, and its tenant still needs the
-- slot for jobs of the type. Withdraws an order that does not count, unless the worker has read the sign. After the
-- time to answer, field `stop` of the job's row stays: so another job is chosen.
-- RETURNS the orders that are left, a table. number: of orders. number_for: a function: the number of orders that count
-- for a tenant, or for a tenant and a type. add: a function: adds an order. lost: key of a tenant -> number of its jobs
-- that are being stopped.
function stop_orders.review(since, settings)
    local stops = { number = 0, of = {}, lost = {}, number_for = number_for, add = add }
    for _, stop in ipairs(read()) do
        local wanted, missing = preemptors.wanted(stop.its_key, since, settings)
        local of_type = 0
        for _, each in ipairs(wanted) do
            of_type = each.type == stop.type and each.number or of_type
        end
        local in_time_us = tonumber(stop.grace_ms) * 1000 + protocol.ANSWERED_WITHIN_US
        local is_late = call.now_us - stop.ordered_us >= in_time_us
        local is_needed = not is_late and number_for(stops, stop.its_key) < missing
            and number_for(stops, stop.its_key, stop.type) < of_type
        if is_needed or redis.call("LREM", key.inbox(stop.worker), 1, sign_of(stop)) == 0 then -- it has read the sign
            note(stops, victims.key_of(stop.id))
            if is_needed then
                add_for(stops, stop.its_key, stop.type)
            end
        else
            redis.call("HDEL", key.vacating, stop.id)
            if not is_late then
                redis.call("HDEL", key.job(stop.id), "stop")
            end
        end
    end
    return stops
end
