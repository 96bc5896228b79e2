-- key_room: how many jobs more may hold a key, or start now: by limits, rates and pauses. Nothing is written here.

-- RETURNS the number that the first of the patterns in the setting `limits` says that matches the key, or nil. They
-- stand in the order in which they count: rules/patterns.precedence.
local function limit_set(its_key)
    for pattern, number in string.gmatch(call.limits, "(%S+)=(%d+)") do
        local of_lua = string.gsub(string.gsub(pattern, "[-.%%]", "%%%0"), "%*", ".*")
        if string.find(its_key, "^" .. of_lua .. "$") then
            return tonumber(number)
        end
    end
end

-- RETURNS the slowest of the rates in `stated`: how many may start at once, a period, µs, and the time after which one
-- start is free again, µs; nil if there is none.
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

-- RETURNS how many jobs may hold the key: what the settings say, else the least that is stated.
local function limit_of(its_key, stated)
    if not call.limits then -- there may be thousands of types with limits
        call.limits = string.gsub(redis.call("HGET", key.settings, "limits") or "", "%f[^%s%z]type%%3A%S+", "")
    end
    local limit = limit_set(its_key)
    if not limit then
        limit = math.huge
        for _, text in pairs(stated) do
            limit = math.min(limit, tonumber(text) or limit)
        end
    end
    return limit
end

-- RETURNS when all starts of a rate are free again, µs; at most a period from now, if the clock was set back.
function key_room.free_at(its_key, period_us)
    return math.min(tonumber(redis.call("ZSCORE", key.rates, its_key)) or 0, call.now_us + period_us)
end

-- RETURNS how many jobs more may hold the key, or start; for a key of a rate also when the next one may, µs, false if
-- one may now. The retry that the key is kept for counts as a holder, and may start itself unless the room is below 0.
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
