-- capacity: computes how many more jobs can hold a key, or start now, from limits, rates and pauses. Writes nothing.
-- A rate of N per period lets one job start per interval, which is period / N. Key `rates` has the time at which a
-- burst of N jobs is possible again; each start moves this time by one interval.

-- Returns the value that the setting `limits` has for a key. The first matching pattern wins: the setting lists its
-- patterns by precedence (`pattern_precedence` in schema/values.py).
--   form: a pattern that accepts only limits or only rates.
local function configured_limit(job_key, form)
    if not call.limits then
        call.limits = limits.of_keys(redis.call("HGET", key.settings, "limits"))
    end
    for pattern, text in string.gmatch(call.limits, "(%S+)=(%S+)") do
        if string.find(text, form) and texts.matches(pattern, job_key) then
            return text
        end
    end
end

local function parse_rate(text)
    local burst, period_us = string.match(text, "^(%d+)/(%d+)$")
    return tonumber(burst), tonumber(period_us)
end

-- Returns the burst and the period (µs) of the slowest rate in `stated`, or nil if `stated` has no rate.
local function slowest_rate(stated)
    local burst, period_us
    for _, text in pairs(stated) do
        local task_burst, task_period_us = parse_rate(text)
        if task_burst and (not burst or task_burst / task_period_us < burst / period_us
            or (task_burst / task_period_us == burst / period_us and task_burst < burst)) then
            burst, period_us = task_burst, task_period_us
        end
    end
    return burst, period_us
end

-- Returns the burst, the period (µs) and the interval (µs) of a key's rate, or nil if the key has none. A rate in the
-- setting `limits` takes precedence over the slowest rate in `stated`.
function capacity.rate_of(job_key, stated)
    if not next(stated) then -- for example, a tenant's key
        return nil
    end
    local burst, period_us = slowest_rate(stated)
    if burst and string.find(job_key, protocol.RATE_PREFIX, 1, true) == 1 then
        local set_burst, set_period_us = parse_rate(configured_limit(job_key, "/") or "")
        burst, period_us = set_burst or burst, set_period_us or period_us
    end
    return burst, period_us, burst and math.max(1, math.floor(period_us / burst))
end

-- Returns the maximum number of jobs that can hold a key: the setting takes precedence over the lowest job limit.
local function limit_of(job_key, state)
    if state.tenant then
        return tenants.quota_of(state.tenant).max
    end
    local set = configured_limit(job_key, "^%d+$")
    if set then
        return tonumber(set)
    end
    local least = math.huge
    for _, text in pairs(state.stated) do
        least = math.min(least, tonumber(text) or least)
    end
    return least
end

-- Returns the time (µs) at which a full burst of a rate is possible again. It is at most one period from now, since the
-- server's clock may have been set back.
function capacity.free_at(job_key, period_us)
    return math.min(tonumber(redis.call("ZSCORE", key.rates, job_key)) or 0, call.now_us + period_us)
end

-- Returns the number of jobs that can still get the key or start now. For a rate, also returns when the next job can
-- start (µs), or false if one can start now. A retry that the key is reserved for counts as a holder, and can start
-- unless the number is negative.
function capacity.capacity_of(job_key, state)
    if state.is_paused then
        return -math.huge
    end
    local burst, period_us, interval_us = capacity.rate_of(job_key, state.stated)
    if burst then
        local free_us = capacity.free_at(job_key, period_us)
        local busy_us = math.max(0, free_us - call.now_us)
        local free = math.min(burst, math.floor((period_us - busy_us) / interval_us))
        return free, free <= 0 and free_us - period_us + interval_us
    end
    local limit = limit_of(job_key, state)
    return limit == math.huge and limit or limit - key_state.held(job_key, state) - (state.retry and 1 or 0)
end
