-- rebuild: compares and fixes data for all repairs. Most data in Redis is derived from the hashes of jobs and workers,
-- from claims, lanes and settings; the other files of this folder define the derivations. Here the entry of a key is
-- compared with its expected value. An entry that differs is recorded and rewritten.

local MAX_MEMBERS = 1000 -- members of one sorted set

-- Begins an invocation of `repair`.
--   looks: number of keys that this invocation has examined.
--   has_kind: keys that exist and have the right Redis type.
function rebuild.begin()
    rebuild.looks, rebuild.has_kind = 0, {}
end

-- Records a finding. Returns true if it must be fixed, false if this invocation only reports findings.
function rebuild.found(finding)
    if call.found then
        call.found[#call.found + 1] = corrupt.line(finding)
        return false
    end
    corrupt.record(finding)
    return true
end

-- Quarantines a corrupt key.
function rebuild.set_aside(name)
    if rebuild.found(corrupt.quarantined(name)) then
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

-- Returns a member's score in a sorted set, or false.
function rebuild.score(name, member)
    return rebuild.exists(name, "zset") and redis.call("ZSCORE", name, member)
end

-- Returns `value` if it is an integer, or nil.
function rebuild.whole(value)
    return value and #value <= protocol.LONGEST_NUMBER and string.find(value, "^%-?%d+$") and value or nil
end

-- Returns `value` if it is a number within the range of times in µs, or nil.
function rebuild.number(value)
    local number = tonumber(value)
    return number and math.abs(number) < 10 ^ protocol.LONGEST_NUMBER and value or nil -- false for NaN
end

-- Returns the expected value of an entry that can have any value: the actual value, or `default`.
function rebuild.any_or(default)
    return function(actual)
        return actual or default
    end
end

-- Returns the expected value of an entry that can have any time: the actual time, or now.
function rebuild.any_time(actual)
    return actual or call.now
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
    if not rebuild.found(prefix .. name .. ": " .. was .. " instead of " .. is) then
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
function rebuild.one(kind, name, member, expected)
    local actual = rebuild.exists(name, kind) and redis.call(READ[kind], unpack({ name, member }))
    return rebuild.entry(kind, name, member, actual, expected)
end

-- Compares entries of several keys, each a list of arguments of `one`, or false. Returns true if any differed.
function rebuild.each(entries)
    local any_differs = false
    for _, entry in ipairs(entries) do
        any_differs = entry and rebuild.one(unpack(entry, 1, 4)) or any_differs
    end
    return any_differs
end

-- Compares the given entries of a key, {member, value, ...}.
function rebuild.some(kind, name, entries, expected)
    for i = 1, #entries, 2 do
        rebuild.entry(kind, name, entries[i], entries[i + 1], expected)
    end
end

-- Calls `fix` with the first member of the sorted set `name` and its score, and with one other member. The time of day
-- selects another member in each repair, since there can be a large number of members. While `fix` returns true for a
-- finding, the next member follows.
function rebuild.with_some_of(name, fix)
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
    rebuild.with_some_of(name, function(member)
        return not belongs(member) and rebuild.one("zset", name, member, nil)
    end)
end

-- Compares all entries of a hash or a sorted set, and the missing entries among the keys of `wanted`.
function rebuild.all(kind, name, expected, wanted)
    local entries = {}
    if rebuild.exists(name, kind) then
        entries = kind == "hash" and redis.call("HGETALL", name) or redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    end
    local is_there = flat.values(entries)
    rebuild.some(kind, name, entries, expected)
    for member in pairs(wanted or {}) do
        if not is_there[member] then
            rebuild.entry(kind, name, member, nil, expected)
        end
    end
end
