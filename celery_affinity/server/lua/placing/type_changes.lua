-- type_changes: what holds back whole types changes: limits, pauses, reserves. Claims from before a limit are counted.
-- @include jobs/has_rules.lua
-- @include placing/type_rules.lua
-- @include fleet/joined.lua
local type_changes = {}

-- Gives `type` another limit; nil is none. A new one is closed until the claims from before it are counted. RETURNS
-- whether it is.
local function set_limit(type, limit)
    local rule = read(redis.call("HGET", key.type_rules, type))
    local was_closed = is_closed(rule)
    if not limit then
        rule.is_counted = false -- the claims that are counted are forgotten as they end
    elseif not rule.limit then
        rule.is_counted = true
    end
    rule.limit = limit
    rule.is_full = limit and redis.call("ZCARD", key.limited(type)) >= limit
    write(type, rule, was_closed)
    return rule.is_counted
end

-- RETURNS a table: type -> its limit, from the setting `limits`.
local function limits_in(text)
    local limits = {}
    for type, limit in string.gmatch(text or "", "type%%3A(%S+)=(%d+)") do
        limits[type] = tonumber(limit)
    end
    return limits
end

-- The setting `limits` changes from `before` to `now`.
function type_changes.change(before, now)
    local old, new = limits_in(before), limits_in(now)
    local is_any_counted = false
    for type in pairs(old) do
        if not new[type] then
            set_limit(type, nil)
        end
    end
    for type, limit in pairs(new) do
        if limit ~= old[type] then
            is_any_counted = set_limit(type, limit) or is_any_counted
        end
    end
    if is_any_counted then
        redis.call("SET", key.recount, 0)
    end
end

-- Has all types be filled that have waiting jobs; those beyond the first by the next sync of each worker.
local function gain_all()
    moved = moved or {}
    local some = redis.call("HSCAN", key.heads, 0, "COUNT", protocol.MOST_RESUMED)[2]
    for i = 1, math.min(#some, 2 * protocol.MOST_RESUMED), 2 do -- of a small hash, HSCAN returns all
        moved[some[i]] = some[i] ~= "!"
    end
end

-- The setting `reserve` changes from `before` to `now`.
function type_changes.reserve(before, now)
    if (before or "") == (now or "") then
        return
    end
    if string.find(now or "", "%S") then
        redis.call("HSET", key.type_rules, "!", now)
        redis.call("HSET", key.heads, "!", protocol.HAS_RESERVES)
        redis.call("SET", key.recount, 0)
    elseif redis.call("HDEL", key.type_rules, "!") == 1 then
        redis.call("HDEL", key.heads, "!")
        if redis.call("EXISTS", key.type_rules) == 1 then
            redis.call("HSET", key.heads, "!", protocol.HAS_RULES)
        end
    end
    gain_all()
end

-- Pauses `type`, or "*" for all, or ends its pause.
function type_changes.pause(type, is_paused)
    local rule = read(redis.call("HGET", key.type_rules, type))
    local was_closed = is_closed(rule)
    rule.is_paused = is_paused
    write(type, rule, was_closed)
    if type == "*" and not is_paused then
        gain_all()
    end
end

-- Counts claims from before a limit or a reserve, of so many workers as one call may. RETURNS whether there are more.
function type_changes.recount()
    local from = redis.call("GET", key.recount)
    if not from then
        return false
    end
    from = string.find(from, "^%d+$") and from or "0" -- else somebody wrote that
    local page, next_from = joined(from, protocol.MOST_COUNTED)
    local text = redis.call("HGET", key.type_rules, "!")
    for _, worker in ipairs(page) do
        for _, id in ipairs(redis.call("HKEYS", key.claims(worker))) do
            local type, lane = unpack(redis.call("HMGET", key.job(id), "type", "lane"))
            if type and lanes.is_one(lane) and (read(redis.call("HGET", key.type_rules, type)).limit
                or reserves.covers(reserves.concerning(text, type), lane)) then
                redis.call("ZADD", key.limited(type), reserves.lane_number(lane), id)
                redis.call("HSET", key.job(id), "limited", 1)
            end
        end
    end
    if next_from then
        redis.call("SET", key.recount, next_from)
        return true
    end
    redis.call("UNLINK", key.recount)
    local all = redis.call("HGETALL", key.type_rules)
    for i = 1, #all, 2 do
        local rule = read(all[i] ~= "!" and all[i + 1])
        if rule.is_counted then
            rule.is_counted, rule.is_full = false, redis.call("ZCARD", key.limited(all[i])) >= rule.limit
            write(all[i], rule, true)
        end
    end
    if text then
        gain_all()
    end
    return false
end
