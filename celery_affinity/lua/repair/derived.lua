-- derived: the one way in which a repair fixes data. Most of what Redis has follows from the rows of jobs and workers,
-- from claims, lanes and settings: the other files of this folder say what follows from what. Here an entry of a key is
-- compared with what it should be; one that differs is recorded, and written anew.

local MOST_MENDED = 1000 -- members of one sorted set

-- `looks`: number of keys that this call has looked at. `has_kind`: keys that exist, with a type that is right.

-- Begins a call of `repair`.
function derived.begin()
    derived.looks, derived.has_kind = 0, {}
end

-- Records a find. RETURNS whether it is to be fixed: not if this call only says what it finds.
function derived.found(what)
    if call.found then
        call.found[#call.found + 1] = spoiled.line(what)
        return false
    end
    spoiled.record(what)
    return true
end

-- Sets aside a key that holds what it must not.
function derived.set_aside(name)
    if derived.found(spoiled.what_was_set_aside(name)) then
        spoiled.set_aside(name)
    end
end

-- RETURNS whether a key exists and has the Redis type `kind`. A key of another type is set aside.
function derived.exists(name, kind)
    if not derived.has_kind[name] then
        derived.looks = derived.looks + 1
        local its_kind = redis.call("TYPE", name).ok
        if its_kind ~= "none" and its_kind ~= kind then
            derived.set_aside(name)
        end
        derived.has_kind[name] = its_kind == kind or nil
    end
    return derived.has_kind[name] or false
end

-- RETURNS the values of fields of a hash, each false if it has none; nothing if there is no such hash.
function derived.fields(name, ...)
    if derived.exists(name, "hash") then
        return unpack(redis.call("HMGET", name, ...))
    end
end

-- RETURNS all fields of a hash, a table: field -> value.
function derived.table_of(name)
    return flat.values(derived.exists(name, "hash") and redis.call("HGETALL", name) or {})
end

-- RETURNS the first members of a sorted set, at most `most`; then "WITHSCORES" may follow.
function derived.members(name, most, ...)
    return derived.exists(name, "zset") and redis.call("ZRANGE", name, 0, most - 1, ...) or {}
end

-- RETURNS the score of a member of a sorted set; false if it is none.
function derived.score(name, member)
    return derived.exists(name, "zset") and redis.call("ZSCORE", name, member)
end

-- RETURNS `value` if it is a whole number; else nil.
function derived.whole(value)
    return value and #value <= protocol.LONGEST_NUMBER and string.find(value, "^%-?%d+$") and value or nil
end

-- RETURNS `value` if it is a number, and no larger than a time, µs, may be; else nil.
function derived.number(value)
    local number = tonumber(value)
    return number and math.abs(number) < 10 ^ protocol.LONGEST_NUMBER and value or nil -- NaN is less than no number
end

-- RETURNS what an entry should be that may have any value: the one that it has, or `otherwise`.
function derived.any_or(otherwise)
    return function(found)
        return found or otherwise
    end
end

-- RETURNS what an entry should be that may have any time: the time that it has, or now.
function derived.any_time(found)
    return found or call.now
end

local READ = { hash = "HGET", zset = "ZSCORE", string = "GET" }
local WRITE = { hash = "HSET", string = "SET" }
local REMOVE = { hash = "HDEL", zset = "ZREM", string = "UNLINK" }

-- Compares what an entry is with what it `should` be: each a text, a number, or false or nil for no entry; `should` may
-- be a function that returns this, of what was found and the member. `name`: of the key. `member`: a field of a hash; a
-- member of a sorted set, whose value is its score; nil for a string. RETURNS whether they differ.
function derived.entry(kind, name, member, found, should)
    found = found or nil
    if type(should) == "function" then
        should = should(found, member)
    end
    should = type(should) == "number" and string.format("%.0f", should) or should or nil
    if found == should then
        return false
    end
    local is_of = member and member .. " of " or ""
    local was, is = string.sub(found or "nothing", 1, 100), string.sub(should or "nothing", 1, 100)
    if not derived.found(is_of .. name .. ": " .. was .. " instead of " .. is) then
        return true
    elseif should and kind == "zset" then
        redis.call("ZADD", name, should, member)
    else
        local words = { name, member }
        words[#words + 1] = should
        redis.call((should and WRITE or REMOVE)[kind], unpack(words))
    end
    return true
end

-- Reads one entry, and compares it. RETURNS whether it differed.
function derived.one(kind, name, member, should)
    local found = derived.exists(name, kind) and redis.call(READ[kind], unpack({ name, member }))
    return derived.entry(kind, name, member, found, should)
end

-- Compares entries of several keys: each a list of arguments of `one`, or false. RETURNS whether any differed.
function derived.each(entries)
    local differ = false
    for _, entry in ipairs(entries) do
        differ = entry and derived.one(unpack(entry, 1, 4)) or differ
    end
    return differ
end

-- Compares entries of a key that were read, {member, value, ...}.
function derived.some(kind, name, entries, should)
    for i = 1, #entries, 2 do
        derived.entry(kind, name, entries[i], entries[i + 1], should)
    end
end

-- Calls `fix` with the first member of the sorted set `name` and its score, and with one other member, by the time of
-- day another one in each repair: there may be very many. While `fix` returns that it found something, the next member
-- follows.
function derived.with_some_of(name, fix)
    local number = derived.exists(name, "zset") and redis.call("ZCARD", name) or 0
    local other = number > 1 and math.floor(call.now_us / protocol.REPAIRED_EVERY_US) % number or 0
    for _, from in ipairs(other > 0 and { 0, other } or { 0 }) do
        local at, looked_at = from, 0
        repeat
            local member, score_of = unpack(redis.call("ZRANGE", name, at, at, "WITHSCORES"))
            local goes_on = member and fix(member, score_of)
            at = goes_on and redis.call("ZSCORE", name, member) and at + 1 or at
            looked_at = looked_at + 1
        until not goes_on or looked_at == MOST_MENDED
    end
end

-- Removes some members of the sorted set `name` of which `belongs` does not return that they belong there.
function derived.keep(name, belongs)
    derived.with_some_of(name, function(member)
        return not belongs(member) and derived.one("zset", name, member, nil)
    end)
end

-- Compares all entries of a hash or a sorted set, and those that it may lack: the members that are keys of `wanted`.
function derived.all(kind, name, should, wanted)
    local entries = {}
    if derived.exists(name, kind) then
        entries = kind == "hash" and redis.call("HGETALL", name) or redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    end
    local is_there = flat.values(entries)
    derived.some(kind, name, entries, should)
    for member in pairs(wanted or {}) do
        if not is_there[member] then
            derived.entry(kind, name, member, nil, should)
        end
    end
end
