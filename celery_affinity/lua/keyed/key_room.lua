-- key_room: how many jobs more may hold a key, or start now, by limits, rates and pauses. Nothing is written here.
-- A rate of N in a period lets a job start each period / N, its interval. Key `rates` has the time at which N jobs may
-- start at once again; each start moves it by an interval.

-- RETURNS the slowest of the rates in `stated`: how many jobs may start at once, the period, µs, and the interval, µs;
-- nil if none of them is a rate.
function key_room.rate_of(stated)
    local most, period_us
    for _, text in pairs(stated) do
        local its_most, its_period_us = string.match(text, "^(%d+)/(%d+)$")
        its_most, its_period_us = tonumber(its_most), tonumber(its_period_us)
        if its_most and (not most or its_most / its_period_us < most / period_us
            or (its_most / its_period_us == most / period_us and its_most < most)) then
            most, period_us = its_most, its_period_us
        end
    end
    return most, period_us, most and math.max(1, math.floor(period_us / most))
end

-- RETURNS how many jobs may hold the key: the number of the first pattern that matches it in the setting `limits`,
-- which has the patterns in the order in which they count (rules/patterns.precedence); else the least that jobs state.
local function limit_of(its_key, stated)
    if not call.limits then
        call.limits = limits.of_keys(redis.call("HGET", key.settings, "limits"))
    end
    for pattern, number in string.gmatch(call.limits, "(%S+)=(%d+)") do
        if texts.matches(pattern, its_key) then
            return tonumber(number)
        end
    end
    local least = math.huge
    for _, text in pairs(stated) do
        least = math.min(least, tonumber(text) or least)
    end
    return least
end

-- RETURNS when all jobs of a rate may start at once again, µs. The server's clock may have been set back since: no
-- later than a period from now.
function key_room.free_at(its_key, period_us)
    return math.min(tonumber(redis.call("ZSCORE", key.rates, its_key)) or 0, call.now_us + period_us)
end

-- RETURNS how many jobs more may hold the key, or start now; of a rate also when the next one may, µs, false if one may
-- now. If the key is kept for a retry, this job counts as a holder, and may start unless the room is below 0.
function key_room.room_of(its_key, its)
    if its.is_paused then
        return -math.huge
    end
    local most, period_us, interval_us = key_room.rate_of(its.stated)
    if most then
        local free_us = key_room.free_at(its_key, period_us)
        local ahead_us = math.max(0, free_us - call.now_us)
        local room = math.min(most, math.floor((period_us - ahead_us) / interval_us))
        return room, room <= 0 and free_us - period_us + interval_us
    end
    return limit_of(its_key, its.stated) - its.held - (its.retry and 1 or 0)
end
