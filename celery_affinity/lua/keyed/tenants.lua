-- tenants: what the setting `tenants` says: words "name=max:number", "name=max:none", the names percent-encoded
-- (rules/tenants.py); "*" stands for each tenant that is not named. A tenant is a key of its jobs, the last of them.
local meanings = kept.cache(2)

-- RETURNS a table: name -> how many jobs of the tenant may run. There may be thousands of names.
local function meaning_of(text)
    local quotas = {}
    for name, most in string.gmatch(text, "(%S+)=max:(%d*)") do
        quotas[name] = tonumber(most) or math.huge
    end
    return quotas
end

-- RETURNS whether a key is that of a tenant.
function tenants.is_one(its_key)
    return string.sub(its_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- RETURNS how many jobs may hold the key of a tenant.
function tenants.max_of(its_key)
    if not call.tenants then
        call.tenants = redis.call("HGET", key.settings, "tenants") or ""
    end
    local quotas = meanings.of[call.tenants] or kept.keep(meanings, call.tenants, meaning_of(call.tenants))
    return quotas[string.sub(its_key, #protocol.TENANT_PREFIX + 1)] or quotas["*"] or math.huge
end
