-- evictions: preempts running jobs. A tenant that waits below its minimum gets the slot of another tenant's running job
-- with `preemptible=True`. A tick orders the eviction by a control message in the inbox of the job's worker. Until the
-- claim has ended, key `vacating` has the order (`stop_orders`), so only one job is stopped per slot. The worker
-- reports the job as `preempted`, or another end. The job then waits again, and its slot goes to the tenant, whose jobs
-- are claimed before all others (`minimums`). `preemptors` selects the tenants, `victims` the jobs.
--
-- Cost: none for jobs that cannot be preempted. A tick reads the orders. If a tenant may need slots and jobs can be
-- preempted, it also reads the hashes of a few hundred preemptible jobs or fewer.

-- Returns the number of a tenant's preemptible claimed jobs, or nil if there are none.
function evictions.number_of(tenant_key)
    local number = redis.call("ZCARD", key.preemptible(tenant_key))
    return number > 0 and number or nil
end

-- Writes this number.
local function count(tenant_key)
    local number = evictions.number_of(tenant_key)
    if number then
        redis.call("ZADD", key.preemptible_tenants, number, tenant_key)
    else
        redis.call("ZREM", key.preemptible_tenants, tenant_key)
    end
end

-- Records the claim of the preemptible job `id` of a tenant.
function evictions.hold(id, tenant_key, fence)
    redis.call("ZADD", key.preemptible(tenant_key), fence, id)
    count(tenant_key)
end

-- Removes the ended claim of the preemptible job `id` of a tenant.
function evictions.free(id, tenant_key)
    if redis.call("ZREM", key.preemptible(tenant_key), id) == 1 then
        count(tenant_key)
        redis.call("HDEL", key.stop_orders, id)
    end
end

-- Records that a worker stopped job `id`. Returns the outcome, as for other ends, and the reason. A stop without an
-- order counts as a requeue, since a task that raises Preempted would otherwise run forever.
--   fence: fencing token of the claim.
--   job: result of `claims.remove`.
--   ran: time in the slot (µs).
function hooks.stopped(worker, id, fence, job, ran)
    local ordered, tenant_key = string.match(redis.call("HGET", key.job(id), "stop") or "", "^(%d+) (%S+)$")
    if ordered ~= fence then
        return "requeued", ""
    elseif job.acked then
        return "returned", ""
    end
    local ran_us = string.find(ran, "^%d+$") and math.min(tonumber(ran), protocol.LONGEST_RUN_US) or 0
    local name, settings = redis.call("HGET", key.worker(worker), "name"), settings_in_force.read()
    redis.call("HINCRBY", key.job(id), "preemptions", 1)
    redis.call("HSET", key.job(id), "preempted", call.now, "preempted_on", name or "",
        "preempted_for", string.sub(tenant_key, #protocol.TENANT_PREFIX + 1), "preempted_ran", call.text(ran_us))
    redis.call("HINCRBY", key.counters, "preempted", 1)
    redis.call("HINCRBY", key.counters, "preempted_us", call.text(ran_us))
    victims.note_stop(worker, settings)
    return "returned", ""
end

-- Orders evictions for a tenant. Returns false if the maximum number of evictions is in progress.
--   stops: result of `stop_orders.review`.
local function order_for(tenant_key, stops, since, settings)
    local needs, missing = preemptors.wanted(tenant_key, since, settings)
    missing = missing - stops:number_for(tenant_key)
    for _, need in ipairs(needs) do
        local number = math.min(missing, need.number - stops:number_for(tenant_key, need.type))
        for _ = 1, number do
            if stops.number >= protocol.MOST_VACATING then
                return false
            end
            local victim = victims.next_of(stops, need.type, settings)
            if not victim then
                break
            end
            stop_orders.order(victim, tenant_key, need.type, settings)
            stops:add(victim.its_key, tenant_key, need.type)
            missing = missing - 1
        end
    end
    return true
end

-- Orders evictions for tenants that need slots, if no free slot fits their jobs. Also reviews earlier orders.
function hooks.order_evictions()
    local has_orders = redis.call("EXISTS", key.stop_orders) == 1
    if not has_orders and redis.call("EXISTS", key.minimum_heads, key.preemptible_tenants) < 2 then
        return
    end
    local settings = settings_in_force.read()
    local since = call.text(call.now_us - settings.preemption_delay_us)
    local stops = stop_orders.review(since, settings)
    for _, tenant_key in ipairs(preemptors.find(since, settings)) do
        if not order_for(tenant_key, stops, since, settings) then
            return
        end
    end
end
