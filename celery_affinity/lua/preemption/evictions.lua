-- evictions: a tenant that waits with fewer slots than its minimum gets the slot of a running job of another tenant,
-- one that may be stopped (`preemptible=True`). A tick orders the stop: a sign in the inbox of the job's worker. Until
-- the claim has ended, key `vacating` has the order (`vacating`), so no second job is stopped for one slot. The worker
-- says that the job was `preempted`, or how else it ended. Then the job waits again, and its slot goes to the tenant,
-- whose jobs go before all others (`minimums`). For whom, say `preemptors`; which job, says `victims`.
-- Cost: nothing of jobs that may not be stopped. A tick reads the orders, and, if somebody may need slots and jobs may
-- be stopped, a few hundred rows of these at most.

-- RETURNS how many claimed jobs of a tenant may be stopped; nil for none.
function evictions.number_of(its_key)
    local number = redis.call("ZCARD", key.preemptible(its_key))
    return number > 0 and number or nil
end

-- Writes how many these are.
local function count(its_key)
    local number = evictions.number_of(its_key)
    if number then
        redis.call("ZADD", key.giving, number, its_key)
    else
        redis.call("ZREM", key.giving, its_key)
    end
end

-- Job `id` of a tenant, which may be stopped, was claimed.
function evictions.hold(id, its_key, fence)
    redis.call("ZADD", key.preemptible(its_key), fence, id)
    count(its_key)
end

-- The claim of job `id` of a tenant, which might be stopped, has ended.
function evictions.free(id, its_key)
    if redis.call("ZREM", key.preemptible(its_key), id) == 1 then
        count(its_key)
        redis.call("HDEL", key.vacating, id)
    end
end

-- A worker says that it stopped job `id`, whose claim had the number `fence`; `known`: what `claims.remove` returned.
-- `ran`: for how long the job had its slot, µs. RETURNS how the job has ended, in the words for other ends, and why. A
-- stop that nobody ordered counts as a requeue: else a task that raises Preempted would run for ever.
function hooks.stopped(worker, id, fence, known, ran)
    local ordered, its_key = string.match(redis.call("HGET", key.job(id), "stop") or "", "^(%d+) (%S+)$")
    if ordered ~= fence then
        return "requeued", ""
    elseif known.acked then
        return "returned", ""
    end
    local ran_us = string.find(ran, "^%d+$") and math.min(tonumber(ran), protocol.LONGEST_RUN_US) or 0
    local name, settings = redis.call("HGET", key.worker(worker), "name"), settings_in_force.read()
    redis.call("HINCRBY", key.job(id), "preemptions", 1)
    redis.call("HSET", key.job(id), "preempted", call.now, "preempted_on", name or "",
        "preempted_for", string.sub(its_key, #protocol.TENANT_PREFIX + 1), "preempted_ran", call.text(ran_us))
    redis.call("HINCRBY", key.counters, "preempted", 1)
    redis.call("HINCRBY", key.counters, "preempted_us", call.text(ran_us))
    victims.note_stop(worker, settings)
    return "returned", ""
end

-- Orders that jobs be stopped for the tenant `its_key`. `stops`: as `stop_orders.review` returns it. RETURNS whether it
-- may go on: not if as many stops are under way as may be.
local function order_for(its_key, stops, since, settings)
    local wanted, missing = preemptors.wanted(its_key, since, settings)
    missing = missing - stops:number_for(its_key)
    for _, each in ipairs(wanted) do
        local number = math.min(missing, each.number - stops:number_for(its_key, each.type))
        for _ = 1, number do
            if stops.number >= protocol.MOST_VACATING then
                return false
            end
            local victim = victims.next_of(stops, each.type, settings)
            if not victim then
                break
            end
            stop_orders.order(victim, its_key, each.type, settings)
            stops:add(victim.its_key, its_key, each.type)
            missing = missing - 1
        end
    end
    return true
end

-- Has jobs stopped for tenants that need slots, once no free slot is left that fits them; and sees to earlier orders.
function hooks.order_evictions()
    local are_some_ordered = redis.call("EXISTS", key.vacating) == 1
    if not are_some_ordered and redis.call("EXISTS", key.first_heads, key.giving) < 2 then
        return
    end
    local settings = settings_in_force.read()
    local since = call.text(call.now_us - settings.preemption_delay_us)
    local stops = stop_orders.review(since, settings)
    for _, its_key in ipairs(preemptors.find(since, settings)) do
        if not order_for(its_key, stops, since, settings) then
            return
        end
    end
end
