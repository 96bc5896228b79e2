-- type_rules: what holds back a whole type: a pause, or a limit of the jobs of the type that run together. The jobs of
-- the type wait in their lanes; a claim leaves out types that are closed. Field "!" of key `heads` says that there are
-- any rules, and whether there are reserves; these stand in field "!" of key `type_rules`.
-- @include placing/heads.lua
-- @include placing/reserves.lua
local type_rules = {}
local says_so -- whether this call wrote the field, which thousands of limits may do at once

-- RETURNS what holds back a type, or "*" for all: limit: a number; is_full: as many run; is_counted: claims from before
-- the limit are not counted yet; is_paused.
local function read(text)
    text = text or ""
    return {
        limit = tonumber(string.match(text, "limit=(%d+)")), is_full = string.find(text, "full", 1, true) ~= nil,
        is_counted = string.find(text, "counting", 1, true) ~= nil,
        is_paused = string.find(text, "paused", 1, true) ~= nil,
    }
end

local function is_closed(rule)
    return rule.is_full or rule.is_counted or rule.is_paused
end

-- Writes what holds back `type`. A type that is open again is filled.
local function write(type, rule, was_closed)
    local words = {}
    words[#words + 1] = rule.limit and "limit=" .. rule.limit or nil
    words[#words + 1] = rule.is_full and "full" or nil
    words[#words + 1] = rule.is_counted and "counting" or nil
    words[#words + 1] = rule.is_paused and "paused" or nil
    if #words > 0 then
        local is_new = redis.call("HSET", key.type_rules, type, table.concat(words, " ")) == 1
        if is_new and not says_so then
            says_so = true
            if redis.call("HEXISTS", key.heads, "!") == 0 then
                redis.call("HSET", key.heads, "!", protocol.HAS_RULES)
            end
        end
    else
        redis.call("HDEL", key.type_rules, type)
        if redis.call("EXISTS", key.type_rules) == 0 then
            redis.call("HDEL", key.heads, "!")
            says_so = false
        end
    end
    moved = moved or {}
    moved[type] = moved[type] or (was_closed and not is_closed(rule))
end

-- RETURNS those of `types` that are open, a table: type -> its limit, and what `reserves.among` does. Removes the
-- `heads` of the others.
function type_rules.open(types, heads, settings, is_ahead)
    local open, limits = {}, {}
    local all, text = unpack(redis.call("HMGET", key.type_rules, "*", "!"))
    for nth, words in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], read(words)
        if all or is_closed(rule) then
            heads[type] = nil
        else
            open[#open + 1], limits[type] = type, rule.limit
        end
    end
    return open, limits, reserves.among(open, text, settings, is_ahead)
end

-- Counts a claim of a type with a limit, or of a class with a reserve. RETURNS whether the type is closed now.
function type_rules.hold(type, id, lane)
    redis.call("ZADD", key.limited(type), reserves.lane_number(lane), id)
    redis.call("HSET", key.job(id), "limited", 1)
    local rule = read(redis.call("HGET", key.type_rules, type))
    rule.is_full = rule.limit and redis.call("ZCARD", key.limited(type)) >= rule.limit
    if rule.is_full then
        write(type, rule, true)
    end
    return rule.is_full
end

-- The claim of a job that a limit of its type, or a reserve, counted was removed.
function type_rules.free(type, id)
    redis.call("ZREM", key.limited(type), id)
    redis.call("HDEL", key.job(id), "limited")
    local words, text = unpack(redis.call("HMGET", key.type_rules, type, "!"))
    local rule = read(words)
    if #reserves.concerning(text, type) > 0 then
        moved[type] = true
    end
    if rule.limit then
        local was_closed = is_closed(rule)
        rule.is_full = redis.call("ZCARD", key.limited(type)) >= rule.limit
        write(type, rule, was_closed)
    end
end
