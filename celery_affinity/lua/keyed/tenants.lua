-- tenants: what the setting `tenants` says: words "name=max:number", "name=max:none,min:number,weight:number", the
-- names percent-encoded (rules/tenants.py); "*" stands for each tenant that is not named. A tenant is a key of its
-- jobs, the last of them.
local meanings = kept.cache(2)

local NONE = { min = 0, weight = 1 }

-- RETURNS a table: name -> the quota of the tenant: max, min, and weight. There may be thousands of names, most of them
-- with a maximum alone.
local function meaning_of(text)
    local quotas = {}
    for name, most, rest in string.gmatch(text, "(%S+)=max:(%d*)(%S*)") do
        local quota = { max = tonumber(most), min = 0, weight = 1 }
        if rest ~= "" then
            quota.min = tonumber(string.match(rest, "min:(%d+)") or 0)
            quota.weight = math.max(1, tonumber(string.match(rest, "weight:(%d+)") or 1))
        end
        quotas[name] = quota
    end
    return quotas
end

-- RETURNS the quota of a tenant.
local function quota_of(its_key)
    if not call.tenants then
        call.tenants = redis.call("HGET", key.settings, "tenants") or ""
    end
    local quotas = meanings.of[call.tenants] or kept.keep(meanings, call.tenants, meaning_of(call.tenants))
    return quotas[string.sub(its_key, #protocol.TENANT_PREFIX + 1)] or quotas["*"] or NONE
end

-- RETURNS whether a key is that of a tenant.
function tenants.is_one(its_key)
    return string.sub(its_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- RETURNS how many jobs may hold the key of a tenant.
function tenants.max_of(its_key)
    return quota_of(its_key).max or math.huge
end

-- RETURNS how many jobs of a tenant are to hold its key before others get slots.
function tenants.min_of(its_key)
    return quota_of(its_key).min
end

-- RETURNS the weight of a tenant: by how much a time that its jobs have slots is divided.
function tenants.weight_of(its_key)
    return quota_of(its_key).weight
end
