-- capacity: how many jobs more may hold a key, or start now, by limits, rates and pauses. Nothing is written here.
-- A rate of N in a period lets a job start each period / N, its interval. Key `rates` has the time at which N jobs may
-- start at once again; each start moves it by an interval.

-- RETURNS what the setting `limits` says of a key, by the first pattern that matches it: the setting has the patterns
-- in the order in which they count (rules/patterns.precedence). `form`: a pattern of what is wanted, a limit or a rate.
local function set_for(its_key, form)
    if not call.limits then
        call.limits = limits.of_keys(redis.call("HGET", key.settings, "limits"))
    end
    for pattern, text in string.gmatch(call.limits, "(%S+)=(%S+)") do
        if string.find(text, form) and texts.matches(pattern, its_key) then
            return text
        end
    end
end

local function rate_in(text)
    local most, period_us = string.match(text, "^(%d+)/(%d+)$")
    return tonumber(most), tonumber(period_us)
end

-- RETURNS the slowest of the rates in `stated`: how many jobs may start at once, and the period, µs; nil if none of
-- them is a rate.
local function slowest_of(stated)
    local most, period_us
    for _, text in pairs(stated) do
        local its_most, its_period_us = rate_in(text)
        if its_most and (not most or its_most / its_period_us < most / period_us
            or (its_most / its_period_us == most / period_us and its_most < most)) then
            most, period_us = its_most, its_period_us
        end
    end
    return most, period_us
end

-- RETURNS the rate of a key, by the setting `limits` or else the slowest in `stated`: how many jobs may start at once,
-- the period, µs, and the interval, µs; nil if the key has none.
function capacity.rate_of(its_key, stated)
    if not next(stated) then -- as of a tenant
        return nil
    end
    local most, period_us = slowest_of(stated)
    if most and string.find(its_key, protocol.RATE_PREFIX, 1, true) == 1 then
        local set_most, set_period_us = rate_in(set_for(its_key, "/") or "")
        most, period_us = set_most or most, set_period_us or period_us
    end
    return most, period_us, most and math.max(1, math.floor(period_us / most))
end

-- RETURNS how many jobs may hold the key: by the settings, or else the least that jobs state.
local function limit_of(its_key, its)
    if its.tenant then
        return tenants.quota_of(its.tenant).max
    end
    local set = set_for(its_key, "^%d+$")
    if set then
        return tonumber(set)
    end
    local least = math.huge
    for _, text in pairs(its.stated) do
        least = math.min(least, tonumber(text) or least)
    end
    return least
end

-- RETURNS when all jobs of a rate may start at once again, µs. The server's clock may have been set back since: no
-- later than a period from now.
function capacity.free_at(its_key, period_us)
    return math.min(tonumber(redis.call("ZSCORE", key.rates, its_key)) or 0, call.now_us + period_us)
end

-- RETURNS how many jobs more may hold the key, or start now; of a rate also when the next one may, µs, false if one may
-- now. If the key is kept for a retry, this job counts as a holder, and may start unless the room is below 0.
function capacity.capacity_of(its_key, its)
    if its.is_paused then
        return -math.huge
    end
    local most, period_us, interval_us = capacity.rate_of(its_key, its.stated)
    if most then
        local free_us = capacity.free_at(its_key, period_us)
        local ahead_us = math.max(0, free_us - call.now_us)
        local room = math.min(most, math.floor((period_us - ahead_us) / interval_us))
        return room, room <= 0 and free_us - period_us + interval_us
    end
    local limit = limit_of(its_key, its)
    return limit == math.huge and limit or limit - key_state.held(its_key, its) - (its.retry and 1 or 0)
end
