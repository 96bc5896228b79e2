-- rebuild: the one way in which a repair fixes data. Most of what Redis has follows from the rows of jobs and workers,
-- from claims, lanes and settings: the other files of this folder say what follows from what. Here an entry of a key is
-- compared with what it should be; one that differs is recorded, and written anew.

local MOST_MENDED = 1000 -- members of one sorted set

-- `looks`: number of keys that this call has looked at. `has_kind`: keys that exist, with a type that is right.

-- Begins a call of `repair`.
function rebuild.begin()
    rebuild.looks, rebuild.has_kind = 0, {}
end

-- Records a find. RETURNS whether it is to be fixed: not if this call only says what it finds.
function rebuild.found(what)
    if call.found then
        call.found[#call.found + 1] = corrupt.line(what)
        return false
    end
    corrupt.record(what)
    return true
end

-- Quarantines a corrupt key.
function rebuild.set_aside(name)
    if rebuild.found(corrupt.quarantined(name)) then
        corrupt.quarantine(name)
    end
end

-- RETURNS whether a key exists and has the Redis type `kind`. A key of another type is set aside.
function rebuild.exists(name, kind)
    if not rebuild.has_kind[name] then
        rebuild.looks = rebuild.looks + 1
        local its_kind = redis.call("TYPE", name).ok
        if its_kind ~= "none" and its_kind ~= kind then
            rebuild.set_aside(name)
        end
        rebuild.has_kind[name] = its_kind == kind or nil
    end
    return rebuild.has_kind[name] or false
end

-- RETURNS the values of fields of a hash, each false if it has none; nothing if there is no such hash.
function rebuild.fields(name, ...)
    if rebuild.exists(name, "hash") then
        return unpack(redis.call("HMGET", name, ...))
    end
end

-- RETURNS all fields of a hash, a table: field -> value.
function rebuild.table_of(name)
    return flat.values(rebuild.exists(name, "hash") and redis.call("HGETALL", name) or {})
end

-- RETURNS the first members of a sorted set, at most `most`; then "WITHSCORES" may follow.
function rebuild.members(name, most, ...)
    return rebuild.exists(name, "zset") and redis.call("ZRANGE", name, 0, most - 1, ...) or {}
end

-- RETURNS the score of a member of a sorted set; false if it is none.
function rebuild.score(name, member)
    return rebuild.exists(name, "zset") and redis.call("ZSCORE", name, member)
end

-- RETURNS `value` if it is a whole number; else nil.
function rebuild.whole(value)
    return value and #value <= protocol.LONGEST_NUMBER and string.find(value, "^%-?%d+$") and value or nil
end

-- Returns `value` if it is a number within the range of times in µs, or nil.
function rebuild.number(value)
    local number = tonumber(value)
    return number and math.abs(number) < 10 ^ protocol.LONGEST_NUMBER and value or nil -- false for NaN
end

-- RETURNS what an entry should be that may have any value: the one that it has, or `otherwise`.
function rebuild.any_or(otherwise)
    return function(found)
        return found or otherwise
    end
end

-- RETURNS what an entry should be that may have any time: the time that it has, or now.
function rebuild.any_time(found)
    return found or call.now
end

local READ = { hash = "HGET", zset = "ZSCORE", string = "GET" }
local WRITE = { hash = "HSET", string = "SET" }
local REMOVE = { hash = "HDEL", zset = "ZREM", string = "UNLINK" }

-- Compares what an entry is with what it `should` be: each a text, a number, or false or nil for no entry; `should` may
-- be a function that returns this, of what was found and the member. `name`: of the key. `member`: a field of a hash; a
-- member of a sorted set, whose value is its score; nil for a string. RETURNS whether they differ.
function rebuild.entry(kind, name, member, found, should)
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
    if not rebuild.found(is_of .. name .. ": " .. was .. " instead of " .. is) then
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
function rebuild.one(kind, name, member, should)
    local found = rebuild.exists(name, kind) and redis.call(READ[kind], unpack({ name, member }))
    return rebuild.entry(kind, name, member, found, should)
end

-- Compares entries of several keys: each a list of arguments of `one`, or false. RETURNS whether any differed.
function rebuild.each(entries)
    local differ = false
    for _, entry in ipairs(entries) do
        differ = entry and rebuild.one(unpack(entry, 1, 4)) or differ
    end
    return differ
end

-- Compares entries of a key that were read, {member, value, ...}.
function rebuild.some(kind, name, entries, should)
    for i = 1, #entries, 2 do
        rebuild.entry(kind, name, entries[i], entries[i + 1], should)
    end
end

-- Calls `fix` with the first member of the sorted set `name` and its score, and with one other member, by the time of
-- day another one in each repair: there may be very many. While `fix` returns that it found something, the next member
-- follows.
function rebuild.with_some_of(name, fix)
    local number = rebuild.exists(name, "zset") and redis.call("ZCARD", name) or 0
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
function rebuild.keep(name, belongs)
    rebuild.with_some_of(name, function(member)
        return not belongs(member) and rebuild.one("zset", name, member, nil)
    end)
end

-- Compares all entries of a hash or a sorted set, and those that it may lack: the members that are keys of `wanted`.
function rebuild.all(kind, name, should, wanted)
    local entries = {}
    if rebuild.exists(name, kind) then
        entries = kind == "hash" and redis.call("HGETALL", name) or redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    end
    local is_there = flat.values(entries)
    rebuild.some(kind, name, entries, should)
    for member in pairs(wanted or {}) do
        if not is_there[member] then
            rebuild.entry(kind, name, member, nil, should)
        end
    end
end
