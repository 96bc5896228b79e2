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

-- Returns the name of the tenant that owns a key.
function tenants.name_of(job_key)
    return string.sub(job_key, #protocol.TENANT_PREFIX + 1)
end

-- Returns the quota of tenant `name`, as a table.
--   max: maximum number of jobs that hold the tenant's key.
--   min: number of holders below which the tenant gets slots before others.
--   weight: divisor of the slot-time that the tenant's jobs use.
function tenants.quota_of(name)
    local quotas = read_settings().quotas
    return quotas[name] or quotas["*"] or NONE
end

-- Returns true if a key belongs to a tenant.
function tenants.is_one(job_key)
    return string.sub(job_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- Returns the number of blocked jobs and holders up to which tenant `name` blocks no job: its maximum. Returns 0 if the
-- tenant has a minimum, or if fair shares are on.
function tenants.most_unbounded(name)
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
    redis.call("UNLINK", key.tags, key.credits)
    return true
end
