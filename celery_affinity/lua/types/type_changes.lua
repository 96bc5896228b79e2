-- type_changes: applies settings and pauses that block whole types (`type_rules`). A type with a new limit is closed
-- until its running jobs are counted. Ticks count them in steps; key `recount` has the position of the next step.

-- Sets the limit of the type with `rule`, nil for no limit. Returns true if ticks must count the claims of the type: it
-- had no limit, or this invocation cannot read its count (`may_count` is false).
local function set_limit(type, rule, limit, may_count)
    local is_new = limit and (not rule.limit or not may_count)
    -- Without a limit no claims are counted. Jobs that were counted end eventually.
    rule.is_being_counted = limit and (rule.is_being_counted or is_new) or false
    rule.limit = limit
    rule.is_full = limit and not rule.is_being_counted
        and redis.call("ZCARD", key.type_running(type)) >= tonumber(limit)
    return is_new
end

-- Returns the limits of types in the setting `limits`: type -> its limit.
local function limits_in(text)
    local limit_of = {}
    for type, limit in limits.of_types(text) do
        limit_of[type] = limit
    end
    return limit_of
end

-- Returns the types whose limits differ.
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

-- Applies a change of the setting `limits` from `before` to `now`. Returns true if the limits of keys change.
-- Cost: O(limits); there can be thousands.
function type_changes.change(before, now)
    local old, new = limits_in(before), limits_in(now)
    local types = differing(old, new)
    local rules, was_closed, is_any_new, counted = {}, {}, false, 0
    for nth, value in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], type_limits.read(value)
        rules[type], was_closed[type] = rule, type_limits.is_closed(rule)
        is_any_new = set_limit(type, rule, new[type], counted < protocol.MOST_FILLED) or is_any_new
        counted = counted + (rule.is_being_counted and 0 or 1)
    end
    type_limits.write_all(rules, was_closed)
    if is_any_new then
        redis.call("SET", key.recount, 0)
    elseif #types > 0 then
        redis.call("SET", key.recount, 0, "XX") -- restarts a count, whose position may be outdated
    end
    return limits.of_keys(before) ~= limits.of_keys(now)
end

-- Lets the caller fill all types with waiting jobs, up to MOST_RESUMED; the sync of each worker fills the others.
local function fill_all()
    local fields = redis.call("HSCAN", key.heads, 0, "COUNT", protocol.MOST_RESUMED)[2]
    for i = 1, math.min(#fields, 2 * protocol.MOST_RESUMED), 2 do -- HSCAN returns all fields of a small hash
        call.to_fill[fields[i]] = fields[i] ~= "!"
    end
end

-- Applies a change of the setting `reserve` from `before` to `now`.
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

-- Pauses `type` ("*" for all types), or ends its pause.
function type_changes.pause(type, is_paused)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    local was_closed = type_limits.is_closed(rule)
    rule.is_paused = is_paused
    type_limits.write(type, rule, was_closed)
    if type == "*" and not is_paused then
        fill_all()
    end
end

-- Counts a claim that is older than the limit or the reserve of its type. Returns true if the claim is newly counted.
--   rules: type -> its rule; missing rules are read and added.
--   text: the reserves.
local function count_claim(id, rules, text)
    local type, lane, is_limited = unpack(redis.call("HMGET", key.job(id), "type", "lane", "limited"))
    if not type or not lanes.is_one(lane) or (is_limited and redis.call("ZSCORE", key.type_running(type), id)) then
        return false
    end
    rules[type] = rules[type] or type_limits.read(redis.call("HGET", key.type_rules, type))
    local is_counted = rules[type].limit or reserves.covers(reserves.concerning(text, type), lane)
    if is_counted then
        type_limits.count(type, id, lane)
    end
    return is_counted
end

-- Returns the position at which the next invocation continues: a worker, and a cursor in its claims.
local function position_of(worker, cursor)
    return redis.call("ZSCORE", key.joined, worker) .. " " .. worker .. " " .. cursor
end

-- Counts claims of up to MOST_COUNTED workers: examines about MOST_CLAIMS claims, and counts up to MOST_CLAIMS.
--   from: the start: the time at which a worker joined, or a result of `position_of`.
-- Returns the position for the next invocation, or nil if all claims are counted.
local function count_claims(from)
    local since, stopped_at, start_cursor = string.match(from, "^(%d+) ?(%S*) ?(%d*)$")
    local text, rules = redis.call("HGET", key.type_rules, "!"), {}
    local page, next_from = workers.joined(since or "0", protocol.MOST_COUNTED) -- no time: another client overwrote it
    local examined, counted, first = 0, 0, 1
    for nth, worker in ipairs(page) do
        first = worker == stopped_at and nth or first
    end
    for nth = first, #page do
        local worker, cursor = page[nth], page[nth] == stopped_at and start_cursor or "0"
        repeat
            if examined >= protocol.MOST_CLAIMS then
                return position_of(worker, cursor)
            end
            local next_cursor, claimed = unpack(redis.call("HSCAN", key.claims(worker), cursor, "COUNT",
                protocol.MOST_CLAIMS))
            for i = 1, #claimed, 2 do
                if counted == protocol.MOST_CLAIMS then -- HSCAN returns all of a small hash, to be read again
                    return position_of(worker, cursor)
                end
                examined, counted = examined + 1, counted + (count_claim(claimed[i], rules, text) and 1 or 0)
            end
            cursor = next_cursor
        until cursor == "0"
    end
    return next_from
end

-- Opens up to MOST_FILLED types that were closed while their claims were counted.
--   position: position in the setting `limits`.
-- Returns the position for the next invocation, or nil after the last type.
local function open_counted(position)
    local text, types = redis.call("HGET", key.settings, "limits") or "", {}
    while position and #types < protocol.MOST_FILLED do
        types[#types + 1], position = limits.next_type(text, position)
    end
    local rules, was_closed = {}, {}
    for nth, value in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        local type, rule = types[nth], type_limits.read(value)
        if rule.is_being_counted then
            rule.is_being_counted = false
            rule.is_full = redis.call("ZCARD", key.type_running(type)) >= (rule.limit or 0)
            rules[type], was_closed[type] = rule, true
        end
    end
    type_limits.write_all(rules, was_closed)
    return position
end

-- Continues to count claims, then opens the types that waited for the count. Returns true if there is more to do.
function type_changes.recount()
    local from = redis.call("GET", key.recount)
    if not from then
        return false
    end
    local position = tonumber(string.match(from, "^types (%d+)$"))
    local next_from = not position and count_claims(from)
    if not next_from then
        position = open_counted(position or 1)
        next_from = position and "types " .. position
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
