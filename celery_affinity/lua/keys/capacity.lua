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

-- tenants: parses the setting `tenants`: tokens "name=max:number", "name=max:none,min:number,weight:number" with
-- percent-encoded names (settings/tenants.py). "*" is the quota of every tenant that is not listed. A tenant is the
-- last key of its jobs. The settings `tenant_turns` and `tenant_half_life_us` control fair shares (`fair_share`). While
-- fair shares are on, field `shares` has "generation half-life". Each change of them begins a new generation, in which
-- all tenants restart equally.
local parsed_quotas, parsed_shares = memo.cache(2), memo.cache(2)

local NO_MAX = 1 / 0 -- `math.huge`, which does not exist while the library is loaded
local NONE, BY_AGE = { max = NO_MAX, min = 0, weight = 1 }, {}

-- Returns a table: name -> the tenant's quota, with max, min and weight. It can have thousands of names, most of them
-- with only a maximum.
local function parse_quotas(text)
    local quotas = {}
    for name, max, options in string.gmatch(text, "(%S+)=max:(%d*)(%S*)") do
        local quota = { max = tonumber(max) or NO_MAX, min = 0, weight = 1 }
        if options ~= "" then
            quota.min = tonumber(string.match(options, "min:(%d+)") or 0)
            quota.weight = math.max(1, tonumber(string.match(options, "weight:(%d+)") or 1))
        end
        quotas[name] = quota
    end
    return quotas
end

-- Returns the generation and the half-life in field `shares`, as a table.
local function parse_shares(text)
    local generation, half_life_us = string.match(text, "^(%d+) (%d+)$")
    return { era = generation, half_life_us = tonumber(half_life_us) }
end

-- Returns the tenant settings as a table.
--   quotas: name -> quota.
--   era, half_life_us: the generation and half-life of fair shares, nil without fair shares.
--   has_pauses: true if anything is paused.
local function read_settings()
    local values = call.tenants
    if not values then
        local fields = redis.call("HMGET", key.settings, "tenants", "shares", "has_pauses")
        local text, shares_text = fields[1] or "", fields[2]
        values = parsed_quotas.of[text]
            or memo.keep(parsed_quotas, text, { quotas = parse_quotas(text), has_pauses = false })
        if shares_text or fields[3] then
            local shares = shares_text and (parsed_shares.of[shares_text]
                or memo.keep(parsed_shares, shares_text, parse_shares(shares_text))) or BY_AGE
            values = {
                quotas = values.quotas, era = shares.era, half_life_us = shares.half_life_us,
                has_pauses = fields[3] ~= false,
            }
        end
        call.tenants = values
    end
    return values
end

function tenants.name_of(job_key)
    return string.sub(job_key, #protocol.TENANT_PREFIX + 1)
end

-- Returns the quota of tenant `name`, as a table. Jobs without a tenant (name "") have the quota of the name '""'.
--   max: maximum number of jobs that hold the tenant's key.
--   min: number of holders below which the tenant gets slots before others.
--   weight: divisor of the slot-time that the tenant's jobs use.
function tenants.quota_of(name)
    local quotas = read_settings().quotas
    if name == "" then
        return quotas['""'] or NONE
    end
    return quotas[name] or quotas["*"] or NONE
end

function tenants.is_tenant_key(job_key)
    return string.sub(job_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- Returns the number of blocked jobs and holders up to which tenant `name` blocks no job: its maximum. Returns 0 if the
-- tenant has a minimum, or if fair shares are on.
function tenants.max_unbounded(name)
    local quota = tenants.quota_of(name)
    return quota.min == 0 and not call.tenants.era and quota.max or 0
end

-- Returns true if any key can be paused: the settings record whether anything is.
function tenants.may_be_paused()
    return (call.tenants or read_settings()).has_pauses
end

-- Returns the generation of fair shares (a string) and the half-life (µs, 0 if there is none), or nil without fair
-- shares.
function tenants.shares()
    local values = call.tenants or read_settings()
    return values.era, values.half_life_us
end

-- Returns the value that field `shares` should have, or nil without fair shares.
function tenants.words_of_shares()
    local order, half_life_us, generation =
        unpack(redis.call("HMGET", key.settings, "tenant_turns", "tenant_half_life_us", "shares_era"))
    local is_valid = string.find(half_life_us or "", "^%d+$")
    return order == "share" and (generation or "0") .. " " .. (is_valid and half_life_us or "0") or nil
end

-- Begins a new generation of fair shares if changed settings require it. Returns true if they do.
function tenants.change_shares()
    if tenants.words_of_shares() == (redis.call("HGET", key.settings, "shares") or nil) then
        return false
    end
    redis.call("HINCRBY", key.settings, "shares_era", 1)
    hash.write(key.settings, "shares", tenants.words_of_shares())
    call.tenants = false
    return true
end
