-- preemptors: finds tenants below their minimum that need slots. Such a tenant has jobs in minimum lanes (`minimums`)
-- that have waited for `preemption_delay`, and no free slot fits these jobs.

local ONE_FREE = { free_for = function()
    return 1
end } -- a view of the slots after an eviction

-- Determines, once per invocation, whether an eviction can let jobs of each of `types` start. Returns a table with all
-- types that the invocation has determined. The value is false if a slot that fits the type is free, or if a pause or a
-- limit blocks the type. Otherwise it is a table.
--   kept_back: result of `reserves.among`, nil without reserves.
local function needs_of_types(types, settings)
    local cache = key_state.cache()
    cache.needs = cache.needs or { types = {}, wanted = {} }
    local unread = {}
    for _, type in ipairs(types) do
        unread[#unread + 1] = cache.needs.types[type] == nil and type or nil
    end
    if #unread > 0 then
        local open, _, reserve_filter = hooks.open(unread, {}, settings, false)
        for _, type in ipairs(unread) do
            cache.needs.types[type] = false
        end
        for _, type in ipairs(open) do
            cache.needs.types[type] = free_slots.free_for(type) == 0 and { kept_back = reserve_filter }
        end
    end
    return cache.needs.types
end

-- Returns true if an eviction would let the head of `lane` start.
local function is_needed(type, lane, enqueued, id, settings)
    local need = needs_of_types({ type }, settings)[type]
    local reserve_filter = need and need.kept_back
    return need
        and not (reserve_filter and reserve_filter.open(type, lane .. " " .. enqueued .. " " .. id, ONE_FREE) == "")
end

local function is_older(one, other)
    return score.is_older(tonumber(one.enqueued), one.id, tonumber(other.enqueued), other.id)
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
    table.sort(needy, is_older)
    return needy
end

-- Returns the types that a tenant needs slots for, a list of tables, and the number of slots that it lacks. The type
-- with the oldest job is first. Computed once per invocation.
--   type: the type.
--   number: number of its jobs that have waited since `since` (µs).
function preemptors.wanted(tenant_key, since, settings)
    needs_of_types({}, settings)
    local cached = key_state.cache().needs.wanted
    if not cached[tenant_key] then
        local list, by_type = {}, {}
        local state = key_state.read(tenant_key)
        local missing = math.max(0, tenants.quota_of(state.tenant).min - key_state.held(tenant_key, state))
        for _, sublane in ipairs(missing > 0 and needy_sublanes(tenant_key, since, settings) or {}) do
            local number = redis.call("ZCOUNT", key.key_queue(tenant_key, sublane.type, sublane.lane), "-inf", since)
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
    table.sort(heads, is_older)
    for nth, head in ipairs(heads) do
        if nth > protocol.MOST_FIRST_LANES then
            break
        elseif is_needed(head.type, head.lane, head.enqueued, head.id, settings) then
            needy[#needy + 1] = head
        end
    end
    return needy
end

-- Returns up to MOST_PREEMPTORS tenants that need slots, the tenant with the oldest job first.
function preemptors.find(since, settings)
    local jobs, needy, is_listed = {}, {}, {}
    for _, head in ipairs(needy_lanes(since, settings)) do
        local entries = redis.call("ZRANGEBYSCORE", key.minimum_lane(head.type, head.lane), "-inf", since, "WITHSCORES",
            "LIMIT", 0, protocol.MOST_PREEMPTORS)
        for i = 1, #entries, 2 do
            jobs[#jobs + 1] = { id = entries[i], enqueued = entries[i + 1] }
        end
    end
    table.sort(jobs, is_older)
    for nth, job in ipairs(jobs) do
        if #needy == protocol.MOST_PREEMPTORS or nth > protocol.MOST_FIRST_JOBS then
            break
        end
        local job_keys = key_state.keys_of(job.id)
        local last = job_keys[#job_keys]
        if last and tenants.is_one(last.key) and not is_listed[last.key] then
            needy[#needy + 1], is_listed[last.key] = last.key, true
        end
    end
    return needy
end
