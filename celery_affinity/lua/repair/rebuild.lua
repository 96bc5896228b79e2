-- rebuild: compares and fixes data for all repairs. Most data in Redis is derived from the hashes of jobs and workers,
-- from claims, lanes and settings; the other files of this folder define the derivations. Here the entry of a key is
-- compared with its expected value. An entry that differs is recorded and rewritten.

local MAX_MEMBERS = 1000 -- members of one sorted set

-- Begins an invocation of `repair`.
--   looks: number of keys that this invocation has examined.
--   has_kind: keys that exist and have the right Redis type.
function rebuild.begin() rebuild.looks, rebuild.has_kind = 0, {} end

-- Records a finding. Returns true if it must be fixed, false if this invocation only reports findings.
function rebuild.record_finding(finding)
    if call.found then
        call.found[#call.found + 1] = corrupt.line(finding)
        return false
    end
    corrupt.record(finding)
    return true
end

-- Quarantines a corrupt key.
function rebuild.set_aside(name)
    if rebuild.record_finding(corrupt.quarantined(name)) then
        corrupt.quarantine(name)
    end
end

-- Returns true if a key exists and has the Redis type `kind`. A key of another type is quarantined.
function rebuild.exists(name, kind)
    if not rebuild.has_kind[name] then
        rebuild.looks = rebuild.looks + 1
        local actual_kind = redis.call("TYPE", name).ok
        if actual_kind ~= "none" and actual_kind ~= kind then
            rebuild.set_aside(name)
        end
        rebuild.has_kind[name] = actual_kind == kind or nil
    end
    return rebuild.has_kind[name] or false
end

-- Returns the values of a hash's fields, false for each missing field; no values if the hash does not exist.
function rebuild.fields(name, ...)
    if rebuild.exists(name, "hash") then
        return unpack(redis.call("HMGET", name, ...))
    end
end

-- Returns all fields of a hash, a table: field -> value.
function rebuild.table_of(name)
    return flat.values(rebuild.exists(name, "hash") and redis.call("HGETALL", name) or {})
end

-- Returns up to `max` first members of a sorted set. The argument "WITHSCORES" can follow.
function rebuild.members(name, max, ...)
    return rebuild.exists(name, "zset") and redis.call("ZRANGE", name, 0, max - 1, ...) or {}
end

-- Returns the first job in a sorted set of waiting jobs and its time. An invalid member is removed, or only recorded.
function rebuild.first_of(name)
    local first = call.found and redis.call("ZRANGE", name, 0, 0, "WITHSCORES") or corrupt.first_of(name, 1)
    local id, time = first[1], first[2]
    if id and not (string.find(time, "^%d+$") and corrupt.is_word(id)) then
        rebuild.record_finding(id .. " of " .. name .. ", which is no job that waits since " .. time)
        return nil
    end
    return id, time
end

-- Returns a member's score in a sorted set, or false.
function rebuild.score(name, member)
    return rebuild.exists(name, "zset") and redis.call("ZSCORE", name, member)
end

-- Returns `value` if it is an integer, or nil.
function rebuild.integer(value)
    return value and #value <= protocol.MAX_NUMBER_LENGTH and string.find(value, "^%-?%d+$") and value or nil
end

-- Returns `value` if it is a number within the range of times in µs, or nil.
function rebuild.number(value)
    local number = tonumber(value)
    return number and math.abs(number) < 10 ^ protocol.MAX_NUMBER_LENGTH and value or nil -- false for NaN
end

-- Returns the expected value of an entry that can have any value: the actual value, or `default`.
function rebuild.actual_or(default)
    return function(actual)
        return actual or default
    end
end

local READ = { hash = "HGET", zset = "ZSCORE", string = "GET" }
local WRITE = { hash = "HSET", string = "SET" }
local REMOVE = { hash = "HDEL", zset = "ZREM", string = "UNLINK" }

-- Compares the `actual` value of an entry with the `expected` value. Returns true if they differ.
--   name: the key.
--   member: field of a hash, or member of a sorted set, whose value is its score; nil for a string.
--   actual, expected: a string, a number, or false or nil for no entry. `expected` can be a function that computes this
--     from the actual value and the member.
function rebuild.entry(kind, name, member, actual, expected)
    actual = actual or nil
    if type(expected) == "function" then
        expected = expected(actual, member)
    end
    expected = type(expected) == "number" and string.format("%.0f", expected) or expected or nil
    if actual == expected then
        return false
    end
    local prefix = member and member .. " of " or ""
    local was, is = string.sub(actual or "nothing", 1, 100), string.sub(expected or "nothing", 1, 100)
    if not rebuild.record_finding(prefix .. name .. ": " .. was .. " instead of " .. is) then
        return true
    elseif expected and kind == "zset" then
        redis.call("ZADD", name, expected, member)
    else
        local arguments = { name, member }
        arguments[#arguments + 1] = expected
        redis.call((expected and WRITE or REMOVE)[kind], unpack(arguments))
    end
    return true
end

-- Reads and compares one entry. Returns true if it differed.
function rebuild.compare(kind, name, member, expected)
    local actual = rebuild.exists(name, kind) and redis.call(READ[kind], unpack({ name, member }))
    return rebuild.entry(kind, name, member, actual, expected)
end

-- Compares entries of several keys, each a list of arguments of `compare`. Returns true if any differed.
function rebuild.each(entries)
    local any_differs = false
    for _, entry in ipairs(entries) do
        any_differs = rebuild.compare(unpack(entry, 1, 4)) or any_differs
    end
    return any_differs
end

-- Compares the given entries of a key, {member, value, ...}. Returns true if any differed.
function rebuild.compare_all(kind, name, entries, expected)
    local any_differs = false
    for i = 1, #entries, 2 do
        any_differs = rebuild.entry(kind, name, entries[i], entries[i + 1], expected) or any_differs
    end
    return any_differs
end

-- Calls `fix` with the first member of the sorted set `name` and its score, and with one other member. The time of day
-- selects another member in each repair, since there can be a large number of members. While `fix` returns true for a
-- finding, the next member follows.
function rebuild.fix_sample(name, fix)
    local number = rebuild.exists(name, "zset") and redis.call("ZCARD", name) or 0
    local other = number > 1 and math.floor(call.now_us / protocol.REPAIRED_EVERY_US) % number or 0
    for _, from in ipairs(other > 0 and { 0, other } or { 0 }) do
        local rank, examined = from, 0
        repeat
            local member, score_of = unpack(redis.call("ZRANGE", name, rank, rank, "WITHSCORES"))
            local continues = member and fix(member, score_of)
            rank = continues and redis.call("ZSCORE", name, member) and rank + 1 or rank
            examined = examined + 1
        until not continues or examined == MAX_MEMBERS
    end
end

-- Removes some members of the sorted set `name` for which `belongs` does not return true.
function rebuild.keep(name, belongs)
    rebuild.fix_sample(name, function(member)
        return not belongs(member) and rebuild.compare("zset", name, member, nil)
    end)
end

-- Compares all entries of a hash or a sorted set, and the missing entries among the keys of `wanted`. Returns true if
-- any differed.
function rebuild.all(kind, name, expected, wanted)
    local entries = {}
    if rebuild.exists(name, kind) then
        entries = kind == "hash" and redis.call("HGETALL", name) or redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    end
    local is_there = flat.values(entries)
    local any_differs = rebuild.compare_all(kind, name, entries, expected)
    for member in pairs(wanted or {}) do
        any_differs = not is_there[member] and rebuild.entry(kind, name, member, nil, expected) or any_differs
    end
    return any_differs
end

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
    if not is_defined then
        return value -- a setting of a newer release, or a field that is derived from the others
    elseif LISTS[name] then
        local other = value and string.gsub(value, LISTS[name], "")
        return other and not string.find(other, "%S") and value or nil -- a space: an empty list, set at run time
    elseif type(defaults.OF[name]) == "string" then
        return CHOICES[value] and value
    elseif COUNTS[name] then
        return rebuild.integer(value)
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
        local valid = setting(value, name) or setting(conf[name], name) or nil
        if valid ~= value and not COUNTS[name] then
            invalid[#invalid + 1] = name
        end
        return valid
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
    rebuild.compare("hash", key.settings, "for_claims", function(stored)
        local value = settings_in_force.text_for_claims(stored)
        local has_changed = stored or redis.call("EXISTS", key.capacity) == 1
            or redis.call("HEXISTS", key.settings, "priority_reversed") == 1
        local is_same = string.match(stored or "", "^(.*) %d+$") == string.match(value, "^(.*) %d+$")
        return has_changed and not is_same and value or stored
    end)
    rebuild.compare("hash", key.settings, "has_pauses", rebuild.exists(key.pauses, "hash") and 1)
    if rebuild.compare("hash", key.settings, "shares", tenants.words_of_shares()) and not call.found then
        redis.call("HINCRBY", key.settings, "limits_revision", 1) -- a tick re-evaluates all tenants
    end
end

-- Fixes the rules of types, which are derived from the settings `limits` and `reserve` and from the pauses, and their
-- indicator in key `heads`. Claims are counted again for a limit or reserves that were missing.
local function fix_type_rules()
    local text, reserve = unpack(redis.call("HMGET", key.settings, "limits", "reserve"))
    reserve = string.find(reserve or "", "%S") and reserve or false
    local is_counting = rebuild.compare("hash", key.type_rules, "!", reserve)
    local other_fields = {
        ["!"] = reserve, [placement.FIELD] = placement.words(), [fair_share.FIELD] = tenants.words_of_shares() and 1,
        [due_times.FIELD] = due_times.settings_words(),
        [minimums.ANY] = rebuild.exists(key.minimum_heads, "hash") and 1,
    }
    local limit_of, pauses, wanted = {}, {}, {}
    for name in pairs(other_fields) do
        wanted[name] = true
    end
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
        if string.sub(type, 1, 1) == "!" then
            return other_fields[type]
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
    rebuild.compare("hash", key.heads, "!", type_limits.word())
    rebuild.compare("string", key.recount, nil, rebuild.actual_or(is_counting and "0"))
end

-- Indexes by time -> fields of the job hash that can have the time. Without fields, an entry without a time is deleted.
local INDEXES = {
    scheduled = { "patient", "rank", "enqueued" }, expires = { "expires" }, unreported = { "ended" },
    rates = {}, clocks = {},
}

local function fix_indexes()
    for name, fields in pairs(INDEXES) do
        local entries = redis.call("ZRANGEBYSCORE", key[name], "(2e18", "+inf", "WITHSCORES", "LIMIT", 0, MAX_TIMES)
        rebuild.compare_all("zset", key[name], entries, function(_, id)
            if #fields == 0 then
                return nil
            end
            local first, second, third = rebuild.fields(key.job(id), unpack(fields))
            return rebuild.integer(first) or rebuild.integer(second) or rebuild.integer(third) or call.now
        end)
    end
end

-- Hashes whose values can be checked separately -> function of value and field that returns the expected value.
local VALUES = {
    counters = rebuild.integer, durations = rebuild.number, batched = rebuild.integer,
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
    rebuild.compare("string", key.claim_number, nil, rebuild.integer)
    fix_settings()
    fix_type_rules()
    fix_indexes()
end
