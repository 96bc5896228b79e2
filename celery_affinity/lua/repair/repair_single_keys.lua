-- repair_single_keys: the keys of which a cohort has one each: settings, what follows from settings, counters, indexes
-- by time.
local MOST_TIMES = 1000 -- entries of an index that have no time
local WORDS = {
    ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true, age = true, share = true,
    idle = true, weighted = true,
}
local LISTS = { -- settings of words like these
    limits = "%S+=%d+/?%d* *", reserve = "[^%s:]+:[%w_-]+=%d+%%? *", tenants = "%S+=max:[%dnoe]+[%l:,%d]* *",
}

local COUNTS = { revision = true, limits_revision = true, priority_reversed = true, shares_era = true }

-- RETURNS the value of a setting if it is one; else nil.
local function setting(value, name)
    local is_known = COUNTS[name] or LISTS[name] or defaults.OF[name] ~= nil
    if name == "for_claims" or name == "shares" or name == "has_pauses" then
        return value -- follows from the others
    elseif not is_known then
        return value -- of a newer release, which alone knows what it may be
    elseif LISTS[name] then
        local other = value and string.gsub(value, LISTS[name], "")
        return other and not string.find(other, "%S") and value or nil -- a blank: none, by a change at run time
    elseif type(defaults.OF[name]) == "string" then
        return WORDS[value] and value
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
    local conf, damaged = rebuild.table_of(key.conf), {}
    rebuild.all("hash", key.settings, function(value, name)
        local found = setting(value, name)
        if not found and not COUNTS[name] then
            damaged[#damaged + 1] = name
        end
        return found or setting(conf[name], name)
    end, conf)
    if #damaged > 0 and not call.found then
        for _, name in ipairs(damaged) do
            redis.call("HSET", key.settings, protocol.SETTING_RESET .. name, call.now)
        end
        redis.call("HINCRBY", key.settings, "revision", 1) -- workers log the new values
        redis.call("HINCRBY", key.settings, "limits_revision", 1) -- a tick renews all keys
    end
end

-- Fixes the settings, and what follows from them. The text by which claims go follows from the others, but for
-- its last word, the time of the last change; so does that of shares.
local function fix_settings()
    fix_values()
    rebuild.one("hash", key.settings, "for_claims", function(found)
        local words = settings_in_force.words_for_claims(found)
        local has_changed = found or redis.call("EXISTS", key.capacity) == 1
            or redis.call("HEXISTS", key.settings, "priority_reversed") == 1
        local is_same = string.match(found or "", "^(.*) %d+$") == string.match(words, "^(.*) %d+$")
        return has_changed and not is_same and words or found
    end)
    rebuild.one("hash", key.settings, "has_pauses", rebuild.exists(key.pauses, "hash") and 1)
    if rebuild.one("hash", key.settings, "shares", tenants.words_of_shares()) and not call.found then
        redis.call("HINCRBY", key.settings, "limits_revision", 1) -- a tick renews all tenants
    end
end

-- What holds back types follows from the settings `limits` and `reserve` and from the pauses; key `heads` says that
-- there is something. Claims are counted again for a limit that was not known.
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
    rebuild.all("hash", key.type_rules, function(words, type)
        if type == "!" then
            is_counting = is_counting or (reserve or "") ~= (words or "")
            return string.find(reserve or "", "%S") and reserve
        end
        if type == placement.FIELD then
            return placement.words()
        elseif type == minimums.ANY then
            return rebuild.exists(key.first_heads, "hash") and 1
        end
        local rule = type_limits.read(words)
        local was_closed = type_limits.is_closed(rule)
        if rule.limit ~= limit_of[type] then
            rule.limit, rule.is_full, rule.is_being_counted = limit_of[type], false, limit_of[type] ~= nil
        end
        rule.is_paused = pauses[type]
        is_counting = is_counting or rule.is_being_counted
        if was_closed and not type_limits.is_closed(rule) then
            call.to_fill[type] = true
        end
        local its_words = type_limits.in_words(rule)
        return its_words ~= "" and its_words
    end, wanted)
    rebuild.one("hash", key.heads, "!", type_limits.word())
    rebuild.one("string", key.recount, nil, rebuild.any_or(is_counting and "0"))
end

-- Indexes by time -> the fields of a job's row that may have the time; none: an entry without a time is deleted.
local INDEXES = {
    scheduled = { "patient", "rank", "enqueued" }, expires = { "expires" }, untold = { "ended" }, rates = {}, tags = {},
}

local function fix_indexes()
    for name, fields in pairs(INDEXES) do
        local entries = redis.call("ZRANGEBYSCORE", key[name], "(2e18", "+inf", "WITHSCORES", "LIMIT", 0, MOST_TIMES)
        rebuild.some("zset", key[name], entries, function(_, id)
            if #fields == 0 then
                return nil
            end
            local time, otherwise, or_else = rebuild.fields(key.job(id), unpack(fields))
            return rebuild.whole(time) or rebuild.whole(otherwise) or rebuild.whole(or_else) or call.now
        end)
    end
end

-- Hashes of which each value says by itself whether it is one: what it should be, from value and field.
local VALUES = {
    counters = rebuild.whole, durations = rebuild.number, batched = rebuild.whole,
    kept_lanes = function(_, place)
        return string.find(place, "^%S+ %l+%.%d%d?$") and "1"
    end,
}

-- Fixes them all.
function repair_single_keys.fix()
    for _, kind in ipairs(protocol.KINDS) do
        if not kind.of_each then
            rebuild.exists(key.base .. kind.name, kind.kind)
        end
    end
    for name, should in pairs(VALUES) do
        rebuild.all("hash", key[name], should)
    end
    rebuild.one("string", key.claim_number, nil, rebuild.whole)
    fix_settings()
    fix_type_rules()
    fix_indexes()
end
