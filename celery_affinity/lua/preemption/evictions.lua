-- evictions: preempts running jobs. A tenant that waits below its minimum gets the slot of another tenant's running job
-- with `preemptible=True`. A tick orders the eviction by a control message in the inbox of the job's worker. Until the
-- claim has ended, key `stop_orders` has the order, so only one job is stopped per slot. The worker
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

local function count(tenant_key)
    local number = evictions.number_of(tenant_key)
    if number then
        redis.call("ZADD", key.preemptible_tenants, number, tenant_key)
    else
        redis.call("ZREM", key.preemptible_tenants, tenant_key)
    end
end

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
    local ran_us = string.find(ran, "^%d+$") and math.min(tonumber(ran), protocol.MAX_RUN_US) or 0
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
            if stops.number >= protocol.MAX_STOP_ORDERS then
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

-- preemptors: finds tenants below their minimum that need slots. Such a tenant has jobs in minimum lanes (`minimums`)
-- that have waited for `preemption_delay`, and no free slot fits these jobs.

local ONE_FREE = { free_for = function()
    return 1
end } -- a view of the slots after an eviction

-- Returns what this invocation has determined, two tables: type -> result of `need_of`, tenant key -> result of
-- `preemptors.wanted`.
local function cached_needs()
    local cache = key_state.cache()
    cache.needs = cache.needs or { types = {}, wanted = {} }
    return cache.needs.types, cache.needs.wanted
end

-- Returns false if no eviction can let jobs of `type` start: a slot that fits the type is free, or a pause or a limit
-- blocks the type. Otherwise returns a table.
--   kept_back: result of `reserves.among`, nil without reserves.
local function need_of(type, settings)
    local needs = cached_needs()
    if needs[type] == nil then
        local open, _, reserve_filter = hooks.open({ type }, {}, settings, false)
        needs[type] = #open > 0 and free_slots.free_for(type) == 0 and { kept_back = reserve_filter }
    end
    return needs[type]
end

-- Returns true if an eviction would let the head of `lane` start.
local function is_needed(type, lane, enqueued, id, settings)
    local need = need_of(type, settings)
    local reserve_filter = need and need.kept_back
    return need
        and not (reserve_filter and reserve_filter.open(type, lane .. " " .. enqueued .. " " .. id, ONE_FREE) == "")
end

-- Returns the sub-lanes of a tenant whose job in a minimum lane needs a slot, oldest job first.
local function needy_sublanes(tenant_key, since, settings)
    local needy = {}
    for _, sublane in pairs(key_state.read(tenant_key).sublanes) do
        local id = sublane.standing
        local enqueued = sublane.is_first and id ~= "" and key_state.enqueued_of(tenant_key, sublane, id)
        if enqueued and tonumber(enqueued) <= tonumber(since)
            and is_needed(sublane.type, sublane.lane, enqueued, id, settings) then
            needy[#needy + 1] = { type = sublane.type, lane = sublane.lane, enqueued = enqueued, id = id }
        end
    end
    table.sort(needy, score.is_before)
    return needy
end

-- Returns the number of jobs in `lane_key` that have waited since `since`; among more than MAX_PREEMPTORS, by rank.
local function number_since(lane_key, since)
    local number = redis.call("ZCOUNT", lane_key, "-inf", since)
    if number <= protocol.MAX_PREEMPTORS then
        local entries = redis.call("ZRANGEBYSCORE", lane_key, "-inf", since, "WITHSCORES")
        for i = 1, #entries, 2 do
            number = lanes.waits_since(entries[i], entries[i + 1]) <= tonumber(since) and number or number - 1
        end
    end
    return number
end

-- Returns the types that a tenant needs slots for, a list of tables, and the number of slots that it lacks. The type
-- with the oldest job is first. Computed once per invocation.
--   type: the type.
--   number: number of its jobs that have waited since `since` (µs); among more than MAX_PREEMPTORS, by rank.
function preemptors.wanted(tenant_key, since, settings)
    local _, cached = cached_needs()
    if not cached[tenant_key] then
        local list, by_type = {}, {}
        local state = key_state.read(tenant_key)
        local missing = math.max(0, tenants.quota_of(state.tenant).min - key_state.held(tenant_key, state))
        for _, sublane in ipairs(missing > 0 and needy_sublanes(tenant_key, since, settings) or {}) do
            local number = number_since(key.key_queue(tenant_key, sublane.type, sublane.lane), since)
            if not by_type[sublane.type] then
                by_type[sublane.type] = { type = sublane.type, number = 0 }
                list[#list + 1] = by_type[sublane.type]
            end
            by_type[sublane.type].number = by_type[sublane.type].number + number
        end
        cached[tenant_key] = { list, missing }
    end
    return unpack(cached[tenant_key])
end

-- Returns the minimum lanes with the oldest heads, if these heads need slots.
local function needy_lanes(since, settings)
    local heads, needy = {}, {}
    local fields = redis.call("HGETALL", key.minimum_heads)
    for i = 1, #fields, 2 do
        for lane, enqueued, id in lanes.each(fields[i + 1]) do
            if tonumber(enqueued) <= tonumber(since) then
                heads[#heads + 1] = { type = fields[i], lane = lane, enqueued = enqueued, id = id }
            end
        end
    end
    table.sort(heads, score.is_before)
    for nth, head in ipairs(heads) do
        if nth > protocol.MAX_FIRST_LANES then
            break
        elseif is_needed(head.type, head.lane, head.enqueued, head.id, settings) then
            needy[#needy + 1] = head
        end
    end
    return needy
end

-- Returns up to MAX_PREEMPTORS tenants that need slots, the tenant with the oldest job first.
function preemptors.find(since, settings)
    local jobs, needy, is_listed = {}, {}, {}
    for _, head in ipairs(needy_lanes(since, settings)) do
        local entries = redis.call("ZRANGEBYSCORE", key.minimum_lane(head.type, head.lane), "-inf", since, "WITHSCORES",
            "LIMIT", 0, protocol.MAX_PREEMPTORS)
        for i = 1, #entries, 2 do
            jobs[#jobs + 1] = { id = entries[i], enqueued = entries[i + 1] }
        end
    end
    table.sort(jobs, score.is_before)
    for nth, job in ipairs(jobs) do
        if #needy == protocol.MAX_PREEMPTORS or nth > protocol.MAX_FIRST_JOBS then
            break
        end
        local has_waited = lanes.waits_since(job.id, job.enqueued) <= tonumber(since)
        local tenant_key = has_waited and key_state.tenant_key_of(job.id)
        if tenant_key and not is_listed[tenant_key] then
            needy[#needy + 1], is_listed[tenant_key] = tenant_key, true
        end
    end
    return needy
end
