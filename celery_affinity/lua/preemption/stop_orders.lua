-- stop_orders: eviction orders, kept until the claims of the victims have ended. Key `vacating` has per victim: the
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
        prefetch.ask_back(victim.worker, victim.number_ahead, workers.split(victim.types))
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

local function number_for(stops, tenant_key, type)
    return stops.of[type and tenant_key .. " " .. type or tenant_key] or 0
end

local function add_for(stops, tenant_key, type)
    for _, name in ipairs({ tenant_key, tenant_key .. " " .. type }) do
        stops.of[name] = (stops.of[name] or 0) + 1
    end
end

-- Counts a job of the tenant `victim_tenant_key` that is being stopped.
local function count_victim(stops, victim_tenant_key)
    stops.number = stops.number + 1
    stops.lost[victim_tenant_key] = (stops.lost[victim_tenant_key] or 0) + 1
end

local function add(stops, victim_tenant_key, tenant_key, type)
    add_for(stops, tenant_key, type)
    count_victim(stops, victim_tenant_key)
end

-- Reviews each order. An order is valid if its worker has time left to answer, and its tenant still needs the slot for
-- jobs of the type. Withdraws an invalid order unless the worker has read the control message. After the time to
-- answer, field `stop` of the job hash is kept, so another job is chosen.
-- Returns the remaining orders, as a table.
--   number: number of orders.
--   number_for: function that returns the number of valid orders for a tenant, or for a tenant and a type.
--   add: function that adds an order.
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
            count_victim(stops, victims.key_of(stop.id))
            if is_needed then
                add_for(stops, stop.its_key, stop.type)
            end
        else
            redis.call("HDEL", key.stop_orders, stop.id)
            if not is_late then
                redis.call("HDEL", key.job(stop.id), "stop")
            end
        end
    end
    return stops
end
