-- tenants: what the setting `tenants` says: words "name=max:number", "name=max:none,min:number,weight:number", the
-- names percent-encoded (rules/tenants.py); "*" stands for each tenant that is not named. A tenant is a key of its
-- jobs, the last of them. Whether tenants go by shares (`shares`) say the settings `tenant_turns` and
-- `tenant_half_life_us`. While they do, field `shares` has both as one text, "era half-life": each change begins an
-- era, in which all tenants begin anew.
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

-- RETURNS what the settings say of tenants, a table: the quotas; era and half_life_us of shares, nil without shares.
local function in_force()
    if not call.tenants then
        local text, of_shares = unpack(redis.call("HMGET", key.settings, "tenants", "shares"))
        text = text or ""
        local era, half_life_us = string.match(of_shares or "", "^(%d+) (%d+)$")
        call.tenants = {
            quotas = meanings.of[text] or kept.keep(meanings, text, meaning_of(text)),
            era = era, half_life_us = tonumber(half_life_us),
        }
    end
    return call.tenants
end

-- RETURNS the name of the tenant whose key is `its_key`.
function tenants.name_of(its_key)
    return string.sub(its_key, #protocol.TENANT_PREFIX + 1)
end

-- RETURNS the quota of a tenant.
local function quota_of(name)
    local quotas = in_force().quotas
    return quotas[name] or quotas["*"] or NONE
end

-- RETURNS whether a key is that of a tenant.
function tenants.is_one(its_key)
    return string.sub(its_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- RETURNS how many jobs may hold the key of tenant `name`.
function tenants.max_of(name)
    return quota_of(name).max or math.huge
end

-- RETURNS how many jobs of tenant `name` are to hold its key before others get slots.
function tenants.min_of(name)
    return quota_of(name).min
end

-- RETURNS how many jobs of tenant `name` may wait for its key and hold it, so that none of them need be kept back: its
-- maximum; 0 if it has a minimum, or tenants go by shares.
function tenants.most_unbounded(name)
    local quota = quota_of(name)
    if quota.min > 0 or in_force().era then
        return 0
    end
    return quota.max or math.huge
end

-- RETURNS the weight of a tenant: by how much a time that its jobs have slots is divided.
function tenants.weight_of(its_key)
    return quota_of(tenants.name_of(its_key)).weight
end

-- RETURNS the era of shares, a text, and the half-life of use, µs, 0 for none; nil while tenants go by age.
function tenants.shares()
    return in_force().era, in_force().half_life_us
end

-- RETURNS what field `shares` should be; nil while tenants go by age.
function tenants.words_of_shares()
    local turns, half_life_us, era =
        unpack(redis.call("HMGET", key.settings, "tenant_turns", "tenant_half_life_us", "shares_era"))
    local is_time = string.find(half_life_us or "", "^%d+$")
    return turns == "share" and (era or "0") .. " " .. (is_time and half_life_us or "0") or nil
end

-- Settings have changed: begins another era of shares if they say so. RETURNS whether they do.
function tenants.change_shares()
    if tenants.words_of_shares() == (redis.call("HGET", key.settings, "shares") or nil) then
        return false
    end
    redis.call("HINCRBY", key.settings, "shares_era", 1)
    local words = tenants.words_of_shares()
    if words then
        redis.call("HSET", key.settings, "shares", words)
    else
        redis.call("HDEL", key.settings, "shares")
    end
    redis.call("UNLINK", key.tags, key.credits)
    return true
end
