-- type_limits: what holds back a whole type: a pause, or a limit of how many of its jobs run at a time. The jobs of the
-- type wait in their lanes; a claim leaves out a type that is closed: it is paused, or as many of its jobs run.
-- Key `type_rules` says that of types and of "*", all types; its field "!" has the reserves (`reserves`). Field "!" of
-- key `heads` says that there are any of these: so a claim, which reads heads anyway, need not look. So it does for a
-- preference (`placement`), of which a claim has to know.

-- RETURNS what a field of key `type_rules` says, a table: limit: a number, nil for none; is_full: as many jobs run;
-- is_being_counted: the jobs from before the limit are still being counted; is_paused.
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

-- RETURNS `rule` as a field says it; "" if nothing holds back the type.
function type_limits.in_words(rule)
    local words = (rule.limit and "limit=" .. rule.limit or "") .. (rule.is_full and " full" or "")
        .. (rule.is_being_counted and " counting" or "") .. (rule.is_paused and " paused" or "")
    return rule.limit and words or string.sub(words, 2) -- without a limit a type is neither full nor counted
end

-- RETURNS what field "!" of key `heads` says; false for nothing. Of a preference alone it says the words themselves: a
-- claim, which reads them there, need not look.
function type_limits.word()
    local reserve, preferred = unpack(redis.call("HMGET", key.type_rules, "!", placement.FIELD))
    if reserve then
        return protocol.HAS_RESERVES
    end
    local number = redis.call("HLEN", key.type_rules)
    return number == 1 and preferred or number > 0 and protocol.HAS_TYPE_RULES
end

-- Writes what `type_limits.word` returns into field "!" of key `heads`.
function type_limits.say_in_heads()
    hash.write(key.heads, "!", type_limits.word())
end

-- RETURNS whether field "!" of key `heads` says that there are pauses, limits or reserves: else it says nothing, or
-- words for `placement.read`.
function type_limits.holds_back(word)
    return word == protocol.HAS_TYPE_RULES or word == protocol.HAS_RESERVES
end

-- Writes field "!" of key `heads` anew if its word may be another one now: fields of key `type_rules` `have_come` while
-- the word told of no pause, limit or reserve; or fields `have_gone`, and at most one is left.
local function fields_changed(have_come, have_gone)
    local may_change = have_come and not type_limits.holds_back(redis.call("HGET", key.heads, "!"))
        or have_gone and redis.call("HLEN", key.type_rules) < 2
    if may_change then
        type_limits.say_in_heads()
    end
end

-- Writes what holds back types. `rules`: type -> what `read` returns. `was_closed`: type -> whether it was closed; one
-- that is open again is filled (`call.to_fill`).
function type_limits.write_all(rules, was_closed)
    local fields, gone = {}, {}
    for type, rule in pairs(rules) do
        local words = type_limits.in_words(rule)
        if words ~= "" then
            fields[#fields + 1], fields[#fields + 2] = type, words
        else
            gone[#gone + 1] = type
        end
        if was_closed[type] and not type_limits.is_closed(rule) then
            call.to_fill[type] = true
        end
    end
    chunked.call("HDEL", key.type_rules, gone)
    fields_changed(chunked.call("HSET", key.type_rules, fields) > 0, #gone > 0)
end

-- Writes a field of key `type_rules` that is not of a type; false: deletes it.
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

-- RETURNS those of `types` that are open; a table: type -> its limit; what `reserves.among` does; what `minimums.heads`
-- does; and how workers are preferred, as `placement.read` says it. Removes the closed types from `heads`.
function hooks.open(types, heads, settings, is_ahead)
    local open, limit_of = {}, {}
    local fields = lanes.fields(key.type_rules, { "*", "!", minimums.ANY, placement.FIELD, unpack(types) })
    local all, text, are_some_first, preferred = unpack(fields, 1, 4)
    for nth, type in ipairs(types) do
        local rule = type_limits.read(fields[nth + 4])
        if all or type_limits.is_closed(rule) then
            heads[type] = nil
        else
            open[#open + 1], limit_of[type] = type, rule.limit
        end
    end
    return open, limit_of, reserves.among(open, text, settings, is_ahead), are_some_first and minimums.heads(open),
        preferred and placement.read(preferred)
end

-- Counts the claim of job `id`, whose type has a limit, or whose class a reserve: key `limited` has these claims by
-- their lanes.
function type_limits.count(type, id, lane)
    redis.call("ZADD", key.limited(type), lanes.number(lane), id)
    redis.call("HSET", key.job(id), "limited", 1, "more", 1)
end

-- Counts such a claim. RETURNS whether the type is full now.
function hooks.count(type, id, lane)
    type_limits.count(type, id, lane)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    rule.is_full = rule.limit and redis.call("ZCARD", key.limited(type)) >= rule.limit
    if rule.is_full then
        type_limits.write(type, rule, true)
    end
    return rule.is_full
end

-- Counts a claim no more that was removed. Jobs of the type may start then.
function type_limits.free(type, id)
    redis.call("ZREM", key.limited(type), id)
    redis.call("HDEL", key.job(id), "limited")
    local words, text = unpack(redis.call("HMGET", key.type_rules, type, "!"))
    local rule = type_limits.read(words)
    if #reserves.concerning(text, type) > 0 then
        call.to_fill[type] = true
    end
    if rule.limit then
        local was_closed = type_limits.is_closed(rule)
        rule.is_full = not rule.is_being_counted and redis.call("ZCARD", key.limited(type)) >= rule.limit
        type_limits.write(type, rule, was_closed)
    end
end
