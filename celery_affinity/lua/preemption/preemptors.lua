-- preemptors: tenants below their minimum that need slots: those with jobs that would go first (`minimums`), that have
-- waited for `preemption_delay`, and that no free slot fits.

local ONE_FREE = { free_for = function()
    return 1
end } -- a view of the slots after a stop

-- Finds out, once in a call, whether the stop of a job may let jobs of each of `types` start. RETURNS a table with all
-- types that the call has found out: type -> false if not, since a slot that fits the type is free, or a pause or a
-- limit holds back the type; else a table, whose kept_back is what `reserves.among` returned, nil without reserves.
local function types_of_call(types, settings)
    local known = key_state.cache()
    known.needs = known.needs or { types = {}, wanted = {} }
    local unknown = {}
    for _, type in ipairs(types) do
        unknown[#unknown + 1] = known.needs.types[type] == nil and type or nil
    end
    if #unknown > 0 then
        local open, _, kept_back = hooks.open(unknown, {}, settings, false)
        for _, type in ipairs(unknown) do
            known.needs.types[type] = false
        end
        for _, type in ipairs(open) do
            known.needs.types[type] = free_slots.free_for(type) == 0 and { kept_back = kept_back }
        end
    end
    return known.needs.types
end

-- RETURNS whether a stop would let the job start that is the head of `lane`.
local function is_needed(type, lane, enqueued, id, settings)
    local found = types_of_call({ type }, settings)[type]
    local kept_back = found and found.kept_back
    return found and not (kept_back and kept_back.open(type, lane .. " " .. enqueued .. " " .. id, ONE_FREE) == "")
end

local function is_older(one, other)
    return score.is_older(tonumber(one.enqueued), one.id, tonumber(other.enqueued), other.id)
end

-- RETURNS the sub-lanes of a tenant whose job that goes first is in need, the one with the oldest such job first.
local function needy_sublanes(its_key, since, settings)
    local found = {}
    for _, sublane in pairs(key_state.read(its_key).sublanes) do
        local id = sublane.standing
        local enqueued = sublane.is_first and id ~= "" and key_state.enqueued_of(its_key, sublane, id)
        if enqueued and tonumber(enqueued) <= tonumber(since)
            and is_needed(sublane.type, sublane.lane, enqueued, id, settings) then
            found[#found + 1] = { type = sublane.type, lane = sublane.lane, enqueued = enqueued, id = id }
        end
    end
    table.sort(found, is_older)
    return found
end

-- RETURNS of a tenant which types it needs slots for, a list of tables, the type with the oldest job first: type, and
-- number: of its jobs that have waited `since` then, µs; and how many slots it lacks. Worked out once in a call.
function preemptors.wanted(its_key, since, settings)
    types_of_call({}, settings)
    local kept_wanted = key_state.cache().needs.wanted
    if not kept_wanted[its_key] then
        local list, by_type = {}, {}
        local its = key_state.read(its_key)
        local missing = math.max(0, tenants.quota_of(its.tenant).min - key_state.held(its_key, its))
        for _, each in ipairs(missing > 0 and needy_sublanes(its_key, since, settings) or {}) do
            local number = redis.call("ZCOUNT", key.sublane(its_key, each.type, each.lane), "-inf", since)
            if not by_type[each.type] then
                by_type[each.type] = { type = each.type, number = 0 }
                list[#list + 1] = by_type[each.type]
            end
            by_type[each.type].number = by_type[each.type].number + number
        end
        kept_wanted[its_key] = { list, missing }
    end
    return unpack(kept_wanted[its_key])
end

-- RETURNS the lanes with the oldest heads of those that go first, if these heads are in need.
local function needy_lanes(since, settings)
    local heads, found = {}, {}
    local all = redis.call("HGETALL", key.first_heads)
    for i = 1, #all, 2 do
        for lane, enqueued, id in lanes.each(all[i + 1]) do
            if tonumber(enqueued) <= tonumber(since) then
                heads[#heads + 1] = { type = all[i], lane = lane, enqueued = enqueued, id = id }
            end
        end
    end
    table.sort(heads, is_older)
    for nth, head in ipairs(heads) do
        if nth > protocol.MOST_FIRST_LANES then
            break
        elseif is_needed(head.type, head.lane, head.enqueued, head.id, settings) then
            found[#found + 1] = head
        end
    end
    return found
end

-- RETURNS at most MOST_PREEMPTORS tenants in need, the one with the oldest job first.
function preemptors.find(since, settings)
    local jobs, found, is_known = {}, {}, {}
    for _, head in ipairs(needy_lanes(since, settings)) do
        local some = redis.call("ZRANGEBYSCORE", key.first_lane(head.type, head.lane), "-inf", since, "WITHSCORES",
            "LIMIT", 0, protocol.MOST_PREEMPTORS)
        for i = 1, #some, 2 do
            jobs[#jobs + 1] = { id = some[i], enqueued = some[i + 1] }
        end
    end
    table.sort(jobs, is_older)
    for nth, job in ipairs(jobs) do
        if #found == protocol.MOST_PREEMPTORS or nth > protocol.MOST_FIRST_JOBS then
            break
        end
        local its_keys = key_state.keys_of(job.id)
        local last = its_keys[#its_keys]
        if last and tenants.is_one(last.key) and not is_known[last.key] then
            found[#found + 1], is_known[last.key] = last.key, true
        end
    end
    return found
end
