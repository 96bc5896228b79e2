-- type_changes: settings and pauses change what holds back whole types (`type_rules`). A type with a new limit is
-- closed until its running jobs are counted. Ticks count them, some claims at a time; key `recount` says where the next
-- tick goes on.

-- Gives the type that has `rule` another limit, nil for none. RETURNS whether ticks are to count the claims of the
-- type: it had no limit before, or this call may not look at its count any more (`may_count` is false).
local function set_limit(type, rule, limit, may_count)
    local is_new = limit and (not rule.limit or not may_count)
    -- Without a limit nothing is counted further: what was counted ends some day.
    rule.is_being_counted = limit and (rule.is_being_counted or is_new) or false
    rule.limit = limit
    rule.is_full = limit and not rule.is_being_counted and redis.call("ZCARD", key.limited(type)) >= tonumber(limit)
    return is_new
end

-- RETURNS what the setting `limits` says of types, a table: type -> its limit.
local function limits_in(text)
    local found = {}
    for type, limit in limits.of_types(text) do
        found[type] = limit
    end
    return found
end

-- RETURNS the types whose limits differ.
local function differing(old, new)
    local types = {}
    for type in pairs(old) do
        types[#types + 1] = not new[type] and type or nil
    end
    for type, limit in pairs(new) do
        types[#types + 1] = limit ~= old[type] and type or nil
    end
    return types
end

-- The setting `limits` changes from `before` to `now`. RETURNS whether it changes for keys.
-- Cost: O(limits), of which there may be thousands.
function type_changes.change(before, now)
    local old, new = limits_in(before), limits_in(now)
    local types = differing(old, new)
    local rules, was_closed, is_any_new, counted = {}, {}, false, 0
    for nth, words in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], type_limits.read(words)
        rules[type], was_closed[type] = rule, type_limits.is_closed(rule)
        is_any_new = set_limit(type, rule, new[type], counted < protocol.MOST_FILLED) or is_any_new
        counted = counted + (rule.is_being_counted and 0 or 1)
    end
    type_limits.write_all(rules, was_closed)
    if is_any_new then
        redis.call("SET", key.recount, 0)
    elseif #types > 0 then
        redis.call("SET", key.recount, 0, "XX") -- if ticks count, they begin anew: the place may be of the old setting
    end
    return limits.of_keys(before) ~= limits.of_keys(now)
end

-- Has the caller fill all types of which jobs wait; of more than MOST_RESUMED, each worker's next sync does.
local function fill_all()
    local some = redis.call("HSCAN", key.heads, 0, "COUNT", protocol.MOST_RESUMED)[2]
    for i = 1, math.min(#some, 2 * protocol.MOST_RESUMED), 2 do -- of a small hash, HSCAN returns all
        call.to_fill[some[i]] = some[i] ~= "!"
    end
end

-- The setting `reserve` changes from `before` to `now`.
function type_changes.reserve(before, now)
    if (before or "") == (now or "") then
        return
    end
    if string.find(now or "", "%S") then
        redis.call("HSET", key.type_rules, "!", now)
        type_limits.say_in_heads()
        redis.call("SET", key.recount, 0)
    elseif redis.call("HDEL", key.type_rules, "!") == 1 then
        type_limits.say_in_heads()
    end
    fill_all()
end

-- Pauses `type`, or "*" for all types, or ends its pause.
function type_changes.pause(type, is_paused)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    local was_closed = type_limits.is_closed(rule)
    rule.is_paused = is_paused
    type_limits.write(type, rule, was_closed)
    if type == "*" and not is_paused then
        fill_all()
    end
end

-- Counts a claim that was made before its type had a limit or a reserve. `rules`: type -> its rule; rules that the call
-- has not read yet are added. `text`: the reserves. RETURNS whether it was counted now.
local function count_claim(id, rules, text)
    local type, lane, is_limited = unpack(redis.call("HMGET", key.job(id), "type", "lane", "limited"))
    if not type or not lanes.is_one(lane) or (is_limited and redis.call("ZSCORE", key.limited(type), id)) then
        return false
    end
    rules[type] = rules[type] or type_limits.read(redis.call("HGET", key.type_rules, type))
    local counts = rules[type].limit or reserves.covers(reserves.concerning(text, type), lane)
    if counts then
        type_limits.count(type, id, lane)
    end
    return counts
end

-- RETURNS where the counting of claims goes on that stops at a worker, and the cursor among its claims.
local function place_of(worker, cursor)
    return redis.call("ZSCORE", key.joined, worker) .. " " .. worker .. " " .. cursor
end

-- Counts claims of MOST_COUNTED workers; looks at MOST_CLAIMS, or some more, and counts MOST_CLAIMS at most. `from`:
-- where to go on: the time at which a worker joined, alone or as `place_of` returns it.
-- RETURNS where the next call goes on; nil if that was all.
local function count_claims(from)
    local since, stopped_at, its_cursor = string.match(from, "^(%d+) ?(%S*) ?(%d*)$")
    local text, rules = redis.call("HGET", key.type_rules, "!"), {}
    local page, next_from = workers.joined(since or "0", protocol.MOST_COUNTED) -- without a time somebody else wrote it
    local looked_at, counted, first = 0, 0, 1
    for nth, worker in ipairs(page) do
        first = worker == stopped_at and nth or first
    end
    for nth = first, #page do
        local worker, cursor = page[nth], page[nth] == stopped_at and its_cursor or "0"
        repeat
            if looked_at >= protocol.MOST_CLAIMS then
                return place_of(worker, cursor)
            end
            local following, claimed = unpack(redis.call("HSCAN", key.claims(worker), cursor, "COUNT",
                protocol.MOST_CLAIMS))
            for i = 1, #claimed, 2 do
                if counted == protocol.MOST_CLAIMS then -- of a small hash, HSCAN returns all: these once more
                    return place_of(worker, cursor)
                end
                looked_at, counted = looked_at + 1, counted + (count_claim(claimed[i], rules, text) and 1 or 0)
            end
            cursor = following
        until cursor == "0"
    end
    return next_from
end

-- Opens types that were closed while their claims were counted, MOST_FILLED at most. `place`: position in the setting
-- `limits` at which this call goes on. RETURNS the position for the next call; nil if no type is left.
local function open_counted(place)
    local text, types = redis.call("HGET", key.settings, "limits") or "", {}
    while place and #types < protocol.MOST_FILLED do
        types[#types + 1], place = limits.next_type(text, place)
    end
    local rules, was_closed = {}, {}
    for nth, words in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], type_limits.read(words)
        if rule.is_being_counted then
            rule.is_being_counted, rule.is_full = false, redis.call("ZCARD", key.limited(type)) >= (rule.limit or 0)
            rules[type], was_closed[type] = rule, true
        end
    end
    type_limits.write_all(rules, was_closed)
    return place
end

-- Goes on with counting claims; and when all are counted, with opening the types that waited for that. RETURNS whether
-- there is more to do.
function type_changes.recount()
    local from = redis.call("GET", key.recount)
    if not from then
        return false
    end
    local place = tonumber(string.match(from, "^types (%d+)$"))
    local next_from = not place and count_claims(from)
    if not next_from then
        place = open_counted(place or 1)
        next_from = place and "types " .. place
    end
    if next_from then
        redis.call("SET", key.recount, next_from)
        return true
    end
    redis.call("UNLINK", key.recount)
    if redis.call("HEXISTS", key.type_rules, "!") == 1 then
        fill_all()
    end
    return false
end
