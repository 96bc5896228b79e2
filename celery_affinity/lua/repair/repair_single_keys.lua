-- repair_single_keys: fixes the keys that exist once per cohort: settings, data derived from settings, counters, and
-- indexes by time.
local MAX_TIMES = 1000 -- entries of an index without a time
local CHOICES = {
    ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true, age = true, share = true,
    idle = true, weighted = true,
}
local LISTS = { -- settings that are lists of such tokens
    limits = "%S+=%d+/?%d* *", reserve = "[^%s:]+:[%w_-]+=%d+%%? *", tenants = "%S+=max:[%dnoe]+[%l:,%d]* *",
}

local COUNTS = { revision = true, limits_revision = true, priority_reversed = true, shares_era = true }

-- Returns the value of a setting if it is valid, or nil.
local function setting(value, name)
    local is_defined = COUNTS[name] or LISTS[name] or defaults.OF[name] ~= nil
    if name == "for_claims" or name == "shares" or name == "has_pauses" then
        return value -- derived from the others
    elseif not is_defined then
        return value -- a setting of a newer release, which cannot be checked here
    elseif LISTS[name] then
        local other = value and string.gsub(value, LISTS[name], "")
        return other and not string.find(other, "%S") and value or nil -- a space: an empty list, set at run time
    elseif type(defaults.OF[name]) == "string" then
        return CHOICES[value] and value
    elseif COUNTS[name] then
        return rebuild.whole(value)
    end
    local number = rebuild.number(value)
    local may_be_negative = string.find(name, "^placement_%l+_weight$")
    return number and (may_be_negative or tonumber(number) >= 0) and number or nil
end

-- Fixes the value of each setting. An invalid or missing value is replaced by the last value from app.conf. A field
-- with the time of this repair is added, and remains until an operator changes or resets the setting (`check` reports
-- the field).
local function fix_values()
    local conf, invalid = rebuild.table_of(key.conf_last), {}
    rebuild.all("hash", key.settings, function(value, name)
        local valid = setting(value, name)
        if not valid and not COUNTS[name] then
            invalid[#invalid + 1] = name
        end
        return valid or setting(conf[name], name)
    end, conf)
    if #invalid > 0 and not call.found then
        for _, name in ipairs(invalid) do
            redis.call("HSET", key.settings, protocol.SETTING_RESET .. name, call.now)
        end
        redis.call("HINCRBY", key.settings, "revision", 1) -- workers log the new values
        redis.call("HINCRBY", key.settings, "limits_revision", 1) -- a tick re-evaluates all keys
    end
end

-- Fixes the settings and the data derived from them. Field `for_claims` is derived except for its last token, the time
-- of the last change. Field `shares` is derived too.
local function fix_settings()
    fix_values()
    rebuild.one("hash", key.settings, "for_claims", function(stored)
        local value = settings_in_force.words_for_claims(stored)
        local has_changed = stored or redis.call("EXISTS", key.capacity) == 1
            or redis.call("HEXISTS", key.settings, "priority_reversed") == 1
        local is_same = string.match(stored or "", "^(.*) %d+$") == string.match(value, "^(.*) %d+$")
        return has_changed and not is_same and value or stored
    end)
    rebuild.one("hash", key.settings, "has_pauses", rebuild.exists(key.pauses, "hash") and 1)
    if rebuild.one("hash", key.settings, "shares", tenants.words_of_shares()) and not call.found then
        redis.call("HINCRBY", key.settings, "limits_revision", 1) -- a tick re-evaluates all tenants
    end
end

-- Fixes the rules of types, which are derived from the settings `limits` and `reserve` and from the pauses, and their
-- indicator in key `heads`. Claims are counted again for a limit that was missing.
local function fix_type_rules()
    local text, reserve = unpack(redis.call("HMGET", key.settings, "limits", "reserve"))
    local limit_of, pauses, wanted = {}, {}, { ["!"] = true, [minimums.ANY] = true, [placement.FIELD] = true }
    local is_counting = false
    for type, limit in limits.of_types(text) do
        limit_of[type], wanted[type] = tonumber(limit), true
    end
    for _, what in ipairs(redis.call("HKEYS", key.pauses)) do
        local type = string.match(what, "^type:(.+)$") or (what == "*" and what)
        if type then
            pauses[type], wanted[type] = true, true
        end
    end
    rebuild.all("hash", key.type_rules, function(value, type)
        if type == "!" then
            is_counting = is_counting or (reserve or "") ~= (value or "")
            return string.find(reserve or "", "%S") and reserve
        end
        if type == placement.FIELD then
            return placement.words()
        elseif type == minimums.ANY then
            return rebuild.exists(key.minimum_heads, "hash") and 1
        end
        local rule = type_limits.read(value)
        local was_closed = type_limits.is_closed(rule)
        if rule.limit ~= limit_of[type] then
            rule.limit, rule.is_full, rule.is_being_counted = limit_of[type], false, limit_of[type] ~= nil
        end
        rule.is_paused = pauses[type]
        is_counting = is_counting or rule.is_being_counted
        if was_closed and not type_limits.is_closed(rule) then
            call.to_fill[type] = true
        end
        local new_value = type_limits.in_words(rule)
        return new_value ~= "" and new_value
    end, wanted)
    rebuild.one("hash", key.heads, "!", type_limits.word())
    rebuild.one("string", key.recount, nil, rebuild.any_or(is_counting and "0"))
end

-- Indexes by time -> fields of the job hash that can have the time. Without fields, an entry without a time is deleted.
local INDEXES = {
    scheduled = { "patient", "rank", "enqueued" }, expires = { "expires" }, unreported = { "ended" },
    rates = {}, tags = {},
}

local function fix_indexes()
    for name, fields in pairs(INDEXES) do
        local entries = redis.call("ZRANGEBYSCORE", key[name], "(2e18", "+inf", "WITHSCORES", "LIMIT", 0, MAX_TIMES)
        rebuild.some("zset", key[name], entries, function(_, id)
            if #fields == 0 then
                return nil
            end
            local first, second, third = rebuild.fields(key.job(id), unpack(fields))
            return rebuild.whole(first) or rebuild.whole(second) or rebuild.whole(third) or call.now
        end)
    end
end

-- Hashes whose values can be checked separately -> function of value and field that returns the expected value.
local VALUES = {
    counters = rebuild.whole, durations = rebuild.number, batched = rebuild.whole,
    kept_lanes = function(_, place)
        return string.find(place, "^%S+ %l+%.%d%d?$") and "1"
    end,
}

-- Fixes all keys of this kind.
function repair_single_keys.fix()
    for _, kind in ipairs(protocol.KINDS) do
        if not kind.of_each then
            rebuild.exists(key.base .. kind.name, kind.kind)
        end
    end
    for name, expected in pairs(VALUES) do
        rebuild.all("hash", key[name], expected)
    end
    rebuild.one("string", key.claim_number, nil, rebuild.whole)
    fix_settings()
    fix_type_rules()
    fix_indexes()
end
