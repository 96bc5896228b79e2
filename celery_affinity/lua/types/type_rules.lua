-- type_rules: what holds back a whole type: a pause, or a limit of the jobs of the type that run together. The jobs of
-- the type wait in their lanes; a claim leaves out types that are closed. Field "!" of key `heads` says that there are
-- any rules, and whether there are reserves; these stand in field "!" of key `type_rules`.
-- RETURNS what holds back a type, or "*" for all: limit: a number; is_full: as many run; is_counted: claims from before
-- the limit are not counted yet; is_paused.
function type_rules.read(text)
    if not text then
        return {}
    end
    return {
        limit = tonumber(string.match(text, "limit=(%d+)")), is_full = string.find(text, "full", 1, true) ~= nil,
        is_counted = string.find(text, "counting", 1, true) ~= nil,
        is_paused = string.find(text, "paused", 1, true) ~= nil,
    }
end

function type_rules.is_closed(rule)
    return rule.is_full or rule.is_counted or rule.is_paused
end

-- RETURNS `rule` in words; "" if nothing holds back the type.
local function in_words(rule)
    local words = (rule.limit and "limit=" .. rule.limit or "") .. (rule.is_full and " full" or "")
        .. (rule.is_counted and " counting" or "") .. (rule.is_paused and " paused" or "")
    return rule.limit and words or string.sub(words, 2) -- without a limit a type is neither full nor counted
end

-- Writes fields of key `type_rules`: {type, words, ...}.
local function write_fields(fields)
    local is_new = false
    for first = 1, #fields, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #fields)
        is_new = redis.call("HSET", key.type_rules, unpack(fields, first, last)) > 0 or is_new
    end
    if is_new and redis.call("HEXISTS", key.heads, "!") == 0 then
        redis.call("HSET", key.heads, "!", protocol.HAS_RULES)
    end
end

-- Deletes fields of key `type_rules`.
local function delete_fields(types)
    for first = 1, #types, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #types)
        redis.call("HDEL", key.type_rules, unpack(types, first, last))
    end
    if #types > 0 and redis.call("EXISTS", key.type_rules) == 0 then
        redis.call("HDEL", key.heads, "!")
    end
end

-- Writes what holds back types: `rules`, as `read` returns them; `was_closed`: whether they were. Both: type -> value.
-- A type that is open again is filled.
function type_rules.write_all(rules, was_closed)
    local fields, gone = {}, {}
    for type, rule in pairs(rules) do
        local words = in_words(rule)
        if words ~= "" then
            fields[#fields + 1], fields[#fields + 2] = type, words
        else
            gone[#gone + 1] = type
        end
        if was_closed[type] and not type_rules.is_closed(rule) then
            call.moved[type] = true
        end
    end
    delete_fields(gone) -- first: if all go, and others come, key `heads` says so in the end
    write_fields(fields)
end

function type_rules.write(type, rule, was_closed)
    type_rules.write_all({ [type] = rule }, { [type] = was_closed })
end

-- RETURNS those of `types` that are open, a table: type -> its limit, and what `reserves.among` does. Removes the
-- `heads` of the others.
function type_rules.open(types, heads, settings, is_ahead)
    local open, limits = {}, {}
    local all, text = unpack(redis.call("HMGET", key.type_rules, "*", "!"))
    for nth, words in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], type_rules.read(words)
        if all or type_rules.is_closed(rule) then
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
    redis.call("HSET", key.job(id), "limited", 1, "more", 1)
    local rule = type_rules.read(redis.call("HGET", key.type_rules, type))
    rule.is_full = rule.limit and redis.call("ZCARD", key.limited(type)) >= rule.limit
    if rule.is_full then
        type_rules.write(type, rule, true)
    end
    return rule.is_full
end

-- The claim of a job that a limit of its type, or a reserve, counted was removed.
function type_rules.free(type, id)
    redis.call("ZREM", key.limited(type), id)
    redis.call("HDEL", key.job(id), "limited")
    local words, text = unpack(redis.call("HMGET", key.type_rules, type, "!"))
    local rule = type_rules.read(words)
    if #reserves.concerning(text, type) > 0 then
        call.moved[type] = true
    end
    if rule.limit then
        local was_closed = type_rules.is_closed(rule)
        rule.is_full = not rule.is_counted and redis.call("ZCARD", key.limited(type)) >= rule.limit
        type_rules.write(type, rule, was_closed)
    end
end
