-- tenants: what the setting `tenants` says: words "name=max:number", "name=max:none,min:number,weight:number", the
-- names percent-encoded (settings/tenants.py); "*" stands for each tenant that is not named. A tenant is a key of its
-- jobs, the last of them. Whether tenants go by shares (`shares`) say the settings `tenant_turns` and
-- `tenant_half_life_us`. While they do, field `shares` has both as one text, "era half-life": each change begins an
-- era, in which all tenants begin anew.
local meanings, meanings_of_shares = memo.cache(2), memo.cache(2)

local NO_MAX = 1 / 0 -- `math.huge`, which is not there while the library is loaded
local NONE, BY_AGE = { max = NO_MAX, min = 0, weight = 1 }, {}

-- RETURNS a table: name -> the quota of the tenant: max, min, and weight. There may be thousands of names, most of them
-- with a maximum alone.
local function quotas_in(text)
    local quotas = {}
    for name, most, rest in string.gmatch(text, "(%S+)=max:(%d*)(%S*)") do
        local quota = { max = tonumber(most) or NO_MAX, min = 0, weight = 1 }
        if rest ~= "" then
            quota.min = tonumber(string.match(rest, "min:(%d+)") or 0)
            quota.weight = math.max(1, tonumber(string.match(rest, "weight:(%d+)") or 1))
        end
        quotas[name] = quota
    end
    return quotas
end

-- RETURNS what field `shares` says, a table: the era and the half-life.
local function meaning_of_shares(text)
    local era, half_life_us = string.match(text, "^(%d+) (%d+)$")
    return { era = era, half_life_us = tonumber(half_life_us) }
end

-- RETURNS what the settings say of tenants, a table: the quotas; era and half_life_us of shares, nil without shares;
-- has_pauses: whether anything is paused.
local function in_force()
    local its = call.tenants
    if not its then
        local words = redis.call("HMGET", key.settings, "tenants", "shares", "has_pauses")
        local text, text_of_shares = words[1] or "", words[2]
        its = meanings.of[text] or memo.keep(meanings, text, { quotas = quotas_in(text), has_pauses = false })
        if text_of_shares or words[3] then
            local of_shares = text_of_shares and (meanings_of_shares.of[text_of_shares]
                or memo.keep(meanings_of_shares, text_of_shares, meaning_of_shares(text_of_shares))) or BY_AGE
            its = {
                quotas = its.quotas, era = of_shares.era, half_life_us = of_shares.half_life_us,
                has_pauses = words[3] ~= false,
            }
        end
        call.tenants = its
    end
    return its
end

-- RETURNS the name of the tenant whose key is `its_key`.
function tenants.name_of(its_key)
    return string.sub(its_key, #protocol.TENANT_PREFIX + 1)
end

-- RETURNS the quota of tenant `name`, a table: `max`, how many jobs may hold its key; `min`, how many are to hold it
-- before others get slots; and the `weight`, by which the time that its jobs have slots is divided.
function tenants.quota_of(name)
    local quotas = in_force().quotas
    return quotas[name] or quotas["*"] or NONE
end

-- RETURNS whether a key is that of a tenant.
function tenants.is_one(its_key)
    return string.sub(its_key, 1, #protocol.TENANT_PREFIX) == protocol.TENANT_PREFIX
end

-- RETURNS how many jobs of tenant `name` may wait for its key and hold it, so that none of them need be kept back: its
-- maximum; 0 if it has a minimum, or tenants go by shares.
function tenants.most_unbounded(name)
    local quota = tenants.quota_of(name)
    return quota.min == 0 and not call.tenants.era and quota.max or 0
end

-- RETURNS whether any key may be paused: the settings say whether anything is.
function tenants.may_be_paused()
    return (call.tenants or in_force()).has_pauses
end

-- RETURNS the era of shares, a text, and the half-life of use, µs, 0 for none; nil while tenants go by age.
function tenants.shares()
    local its = call.tenants or in_force()
    return its.era, its.half_life_us
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
    hash.write(key.settings, "shares", tenants.words_of_shares())
    redis.call("UNLINK", key.tags, key.credits)
    return true
end
