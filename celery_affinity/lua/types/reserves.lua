-- reserves: free slots that jobs of a class (queued jobs, on-demand jobs, or jobs of some priorities, of some types)
-- leave to others: such a job starts only if enough of the slots that fit its type stay free. What the setting says is
-- read anew in each call; where there is no reserve, it costs nothing.

-- RETURNS the ranges of lane numbers that a class has: the first of one range, its last, ...
local function ranges_of(class)
    local on_demand = protocol.MAX_PRIORITY + 1
    if class == "queued" then
        return { 0, on_demand - 1 }
    elseif class == "on_demand" then
        return { on_demand, 2 * on_demand - 1 }
    end
    local first, last = string.match(class, "^(%d+)%-?(%d*)$")
    if not first then
        return {} -- no setting says that
    end
    last = tonumber(last) or tonumber(first)
    return { tonumber(first), last, on_demand + first, on_demand + last }
end

-- RETURNS the reserves in `text` that concern `type`, a list of tables: ranges: of lane numbers of the class; amount:
-- slots kept free, or percent of the live slots if is_share. `text`: the setting, false for none.
function reserves.concerning(text, type)
    local found = {}
    for pattern, class, amount, share in string.gmatch(text or "", "(%S+):([%w_-]+)=(%d+)(%%?)") do
        if texts.matches(pattern, type) then
            found[#found + 1] = { ranges = ranges_of(class), amount = tonumber(amount), is_share = share ~= "" }
        end
    end
    return found
end

local function covers(reserve, number)
    for i = 1, #reserve.ranges, 2 do
        if reserve.ranges[i] <= number and number <= reserve.ranges[i + 1] then
            return true
        end
    end
    return false
end

-- RETURNS whether one of `of_type`, reserves as `concerning` returns them, is for jobs of `lane`.
function reserves.covers(of_type, lane)
    for _, each in ipairs(of_type) do
        if covers(each, lanes.number(lane)) then
            return true
        end
    end
    return false
end

-- Counts once the slots that each of the reserves `of_type` keeps free of `type`. RETURNS the most of them.
local function count_slots(type, of_type)
    if not of_type.most then
        of_type.live = tonumber(redis.call("HGET", key.capacity, type)) or 0
        of_type.most = 0
        for _, each in ipairs(of_type) do
            each.slots = each.is_share and math.ceil(each.amount * of_type.live / 100) or each.amount
            of_type.most = math.max(of_type.most, each.slots)
        end
    end
    return of_type.most
end

-- RETURNS whether a job runs of the type, and of the class of the reserve.
local function runs(type, reserve)
    if reserve.runs == nil then
        reserve.runs = false
        for i = 1, #reserve.ranges, 2 do
            local first, last = reserve.ranges[i], reserve.ranges[i + 1]
            local found = redis.call("ZRANGEBYSCORE", key.limited(type), first, last, "LIMIT", 0, 1)
            reserve.runs = reserve.runs or #found > 0
        end
    end
    return reserve.runs
end

-- RETURNS whether a reserve lets a job of its class start beside `free` slots. A reserve of all `live` slots, or more,
-- would let none ever start: so one may while none of its class runs.
local function allows(type, reserve, free, live)
    return free > reserve.slots
        or (reserve.slots >= live and redis.call("EXISTS", key.recount) == 0 and not runs(type, reserve))
end

-- RETURNS what keeps back jobs of `types` in this call, a table of functions; nil if no reserve in `text` concerns
-- them. `is_ahead`: whether jobs get places beyond the slots of a worker: those of a class with a reserve get none.
function reserves.among(types, text, settings, is_ahead)
    local concerning = {} -- type -> its reserves; a type without one has no entry
    for _, type in ipairs(types) do
        local found = reserves.concerning(text, type)
        concerning[type] = #found > 0 and found or nil
    end
    if not next(concerning) then
        return nil
    end

    local function may_start(type, lane, enqueued, free)
        local patience_us, of_type = settings.reserve_patience_us, concerning[type]
        if patience_us > 0 and call.now_us - tonumber(enqueued) >= patience_us then
            return true
        end
        local number = lanes.number(lane)
        for _, each in ipairs(of_type) do
            if covers(each, number) and (is_ahead or not allows(type, each, free, of_type.live)) then
                return false
            end
        end
        return true
    end

    return {
        -- RETURNS those of the `heads` of `type` that may start, of which `view` has the free slots; "" for none.
        open = function(type, heads, view)
            local of_type = concerning[type]
            local free = of_type and view:free_for(type)
            if not of_type or free > count_slots(type, of_type) then
                return heads
            end
            local open = {}
            for lane, enqueued, id in lanes.each(heads) do
                if may_start(type, lane, enqueued, free) then
                    open[#open + 1] = lane .. " " .. enqueued .. " " .. id
                end
            end
            return table.concat(open, " ")
        end,

        -- RETURNS whether the claims of jobs of `lane` are counted (`hooks.count`).
        covers = function(type, lane)
            return concerning[type] and reserves.covers(concerning[type], lane)
        end,

        -- A claim of a job of `type` was counted: another job of its class may run.
        counted = function(type)
            for _, each in ipairs(concerning[type] or {}) do
                each.runs = nil
            end
        end,
    }
end
