-- reserves: keeps slots free that jobs of a class cannot use. A class is queued jobs, on-demand jobs or some
-- priorities, for some types. A job of the class starts only if enough of the slots that fit its type stay free. The
-- setting is read in each invocation; without a reserve this has no cost.

-- Returns the ranges of lane numbers of a class: first and last of one range, and so on.
local function ranges_of(class)
    local on_demand = protocol.MAX_PRIORITY + 1
    if class == "queued" then
        return { 0, on_demand - 1 }
    elseif class == "on_demand" then
        return { on_demand, 2 * on_demand - 1 }
    end
    local first, last = string.match(class, "^(%d+)%-?(%d*)$")
    if not first then
        return {} -- not a valid setting
    end
    last = tonumber(last) or tonumber(first)
    return { tonumber(first), last, on_demand + first, on_demand + last }
end

-- Returns a list of the reserves in the setting `text` (or false) that apply to `type`, as tables.
--   ranges: lane numbers of the class.
--   amount: slots kept free, or the percentage of live slots if is_share is true.
function reserves.concerning(text, type)
    local matches = {}
    for pattern, class, amount, share in string.gmatch(text or "", "(%S+):([%w_-]+)=(%d+)(%%?)") do
        if texts.matches(pattern, type) then
            matches[#matches + 1] = { ranges = ranges_of(class), amount = tonumber(amount), is_share = share ~= "" }
        end
    end
    return matches
end

local function covers(reserve, number)
    for i = 1, #reserve.ranges, 2 do
        if reserve.ranges[i] <= number and number <= reserve.ranges[i + 1] then
            return true
        end
    end
    return false
end

-- Returns true if a reserve in `type_reserves` (see `concerning`) applies to jobs of `lane`.
function reserves.covers(type_reserves, lane)
    for _, reserve in ipairs(type_reserves) do
        if covers(reserve, lanes.number(lane)) then
            return true
        end
    end
    return false
end

-- Computes once the slots that each reserve in `type_reserves` keeps free of `type`. Returns the largest number.
local function max_slots(type, type_reserves)
    if not type_reserves.max_slots then
        type_reserves.live = tonumber(redis.call("HGET", key.capacity, type)) or 0
        type_reserves.max_slots = 0
        for _, reserve in ipairs(type_reserves) do
            reserve.slots = reserve.is_share and math.ceil(reserve.amount * type_reserves.live / 100) or reserve.amount
            type_reserves.max_slots = math.max(type_reserves.max_slots, reserve.slots)
        end
    end
    return type_reserves.max_slots
end

-- Returns true if a job of the type and of the reserve's class is running.
local function has_running_job(type, reserve)
    if reserve.runs == nil then
        reserve.runs = false
        for i = 1, #reserve.ranges, 2 do
            local first, last = reserve.ranges[i], reserve.ranges[i + 1]
            local matches = redis.call("ZRANGEBYSCORE", key.type_running(type), first, last, "LIMIT", 0, 1)
            reserve.runs = reserve.runs or #matches > 0
        end
    end
    return reserve.runs
end

-- Returns true if a reserve lets a job of its class start while `free` slots are free. A reserve of all `live` slots or
-- more would block its class forever, so one job can start while no job of the class is running.
local function allows(type, reserve, free, live)
    return free > reserve.slots
        or (reserve.slots >= live and redis.call("EXISTS", key.recount) == 0 and not has_running_job(type, reserve))
end

-- Returns the filter for jobs of `types` in this invocation, a table of functions; nil if no reserve in `text` applies.
--   is_ahead: true for prefetching, which jobs of a class with a reserve do not take part in.
function reserves.among(types, text, settings, is_ahead)
    local concerning = {} -- type -> its reserves; no entry for a type without reserves
    for _, type in ipairs(types) do
        local type_reserves = reserves.concerning(text, type)
        concerning[type] = #type_reserves > 0 and type_reserves or nil
    end
    if not next(concerning) then
        return nil
    end

    local function may_start(type, lane, rank, id, free)
        local patience_us, type_reserves = settings.reserve_patience_us, concerning[type]
        if patience_us > 0 and call.now_us - tonumber(rank) >= patience_us
            and call.now_us - lanes.waits_since(id, rank) >= patience_us then
            return true
        end
        local number = lanes.number(lane)
        for _, reserve in ipairs(type_reserves) do
            if covers(reserve, number) and (is_ahead or not allows(type, reserve, free, type_reserves.live)) then
                return false
            end
        end
        return true
    end

    return {
        -- Returns those `heads` of `type` that can start with the free slots of `view`, or "".
        open = function(type, heads, view)
            local type_reserves = concerning[type]
            local free = type_reserves and view:free_for(type)
            if not type_reserves or free > max_slots(type, type_reserves) then
                return heads
            end
            local open = {}
            for lane, enqueued, id in lanes.each(heads) do
                if may_start(type, lane, enqueued, id, free) then
                    open[#open + 1] = lane .. " " .. enqueued .. " " .. id
                end
            end
            return table.concat(open, " ")
        end,

        -- Returns true if claims from `lane` are counted (`hooks.count`).
        covers = function(type, lane)
            return concerning[type] and reserves.covers(concerning[type], lane)
        end,

        -- Updates the filter after a claim of `type` was counted: another job of its class may now be running.
        counted = function(type)
            for _, reserve in ipairs(concerning[type] or {}) do
                reserve.runs = nil
            end
        end,
    }
end
