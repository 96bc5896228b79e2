-- type_limits: blocks whole types: by a pause, or by a limit on the number of running jobs. The jobs of the type wait
-- in their lanes. A claim skips a closed type: it is paused, or its limit is reached.
-- Key `type_rules` has this data per type and for "*" (all types); its field "!" has the reserves (`reserves`). Field
-- "!" of key `heads` is set if any of these exist, so a claim, which reads heads anyway, can skip the lookup. The field
-- is also set for a worker preference (`placement`), which claims need.

-- Returns a parsed field of key `type_rules`, as a table.
--   limit: a number, or nil.
--   is_full: true if the limit is reached.
--   is_being_counted: true while jobs older than the limit are being counted.
--   is_paused: true if the type is paused.
function type_limits.read(text)
    if not text then
        return {}
    end
    return {
        limit = tonumber(string.match(text, "limit=(%d+)")), is_full = string.find(text, "full", 1, true) ~= nil,
        is_being_counted = string.find(text, "counting", 1, true) ~= nil,
        is_paused = string.find(text, "paused", 1, true) ~= nil,
    }
end

function type_limits.is_closed(rule)
    return rule.is_full or rule.is_being_counted or rule.is_paused
end

-- Returns `rule` as a field value, or "" if the type is not blocked.
function type_limits.in_words(rule)
    local value = (rule.limit and "limit=" .. rule.limit or "") .. (rule.is_full and " full" or "")
        .. (rule.is_being_counted and " counting" or "") .. (rule.is_paused and " paused" or "")
    return rule.limit and value or string.sub(value, 2) -- without a limit a type is neither full nor counted
end

-- Returns the value of field "!" of key `heads`, or false. A preference without other rules is stored there in full, so
-- that a claim does not read another key.
function type_limits.word()
    local reserve, preferred = unpack(redis.call("HMGET", key.type_rules, "!", placement.FIELD))
    if reserve then
        return protocol.HAS_RESERVES
    end
    local number = redis.call("HLEN", key.type_rules)
    return number == 1 and preferred or number > 0 and protocol.HAS_TYPE_RULES
end

-- Writes field "!" of key `heads`.
function type_limits.say_in_heads()
    hash.write(key.heads, "!", type_limits.word())
end

-- Returns true if field "!" of key `heads` indicates pauses, limits or reserves. Otherwise it is missing, or a value
-- for `placement.read`.
function type_limits.holds_back(word)
    return word == protocol.HAS_TYPE_RULES or word == protocol.HAS_RESERVES
end

-- Rewrites field "!" of key `heads` if its value can have changed.
--   were_added: true if fields of `type_rules` were added; the value changes unless it already indicates rules.
--   were_deleted: true if fields were deleted; the value can change if at most one field remains.
local function fields_changed(were_added, were_deleted)
    local may_change = were_added and not type_limits.holds_back(redis.call("HGET", key.heads, "!"))
        or were_deleted and redis.call("HLEN", key.type_rules) < 2
    if may_change then
        type_limits.say_in_heads()
    end
end

-- Writes the rules of types.
--   rules: type -> result of `read`.
--   was_closed: type -> true if it was closed; a type that is open again is filled (`call.to_fill`).
function type_limits.write_all(rules, was_closed)
    local fields, deleted = {}, {}
    for type, rule in pairs(rules) do
        local value = type_limits.in_words(rule)
        if value ~= "" then
            fields[#fields + 1], fields[#fields + 2] = type, value
        else
            deleted[#deleted + 1] = type
        end
        if was_closed[type] and not type_limits.is_closed(rule) then
            call.to_fill[type] = true
        end
    end
    chunked.call("HDEL", key.type_rules, deleted)
    fields_changed(chunked.call("HSET", key.type_rules, fields) > 0, #deleted > 0)
end

-- Writes a field of key `type_rules` that does not belong to a type; false deletes it.
function hooks.say_to_claims(name, value)
    if value then
        fields_changed(redis.call("HSET", key.type_rules, name, value) == 1 or name == placement.FIELD, false)
    else
        fields_changed(false, redis.call("HDEL", key.type_rules, name) == 1)
    end
end

function type_limits.write(type, rule, was_closed)
    type_limits.write_all({ [type] = rule }, { [type] = was_closed })
end

-- Returns the open types of `types`, a table (type -> its limit), the result of `reserves.among`, the result of
-- `minimums.heads`, and the worker preference (`placement.read`). Removes closed types from `heads`.
function hooks.open(types, heads, settings, is_ahead)
    local open, limit_of = {}, {}
    local fields = lanes.fields(key.type_rules, { "*", "!", minimums.ANY, placement.FIELD, unpack(types) })
    local pause_of_all, text, has_minimum_heads, preferred = unpack(fields, 1, 4)
    for nth, type in ipairs(types) do
        local rule = type_limits.read(fields[nth + 4])
        if pause_of_all or type_limits.is_closed(rule) then
            heads[type] = nil
        else
            open[#open + 1], limit_of[type] = type, rule.limit
        end
    end
    return open, limit_of, reserves.among(open, text, settings, is_ahead), has_minimum_heads and minimums.heads(open),
        preferred and placement.read(preferred)
end

-- Counts the claim of job `id` for the limit of its type or the reserve of its class. Key `limited` has these claims
-- with their lane numbers.
function type_limits.count(type, id, lane)
    redis.call("ZADD", key.type_running(type), lanes.number(lane), id)
    redis.call("HSET", key.job(id), "limited", 1, "more", 1)
end

-- Counts such a claim. Returns true if the type is now full.
function hooks.count(type, id, lane)
    type_limits.count(type, id, lane)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    rule.is_full = rule.limit and redis.call("ZCARD", key.type_running(type)) >= rule.limit
    if rule.is_full then
        type_limits.write(type, rule, true)
    end
    return rule.is_full
end

-- Stops counting a removed claim. Jobs of the type may then start.
function type_limits.free(type, id)
    redis.call("ZREM", key.type_running(type), id)
    redis.call("HDEL", key.job(id), "limited")
    local value, text = unpack(redis.call("HMGET", key.type_rules, type, "!"))
    local rule = type_limits.read(value)
    if #reserves.concerning(text, type) > 0 then
        call.to_fill[type] = true
    end
    if rule.limit then
        local was_closed = type_limits.is_closed(rule)
        rule.is_full = not rule.is_being_counted and redis.call("ZCARD", key.type_running(type)) >= rule.limit
        type_limits.write(type, rule, was_closed)
    end
end
