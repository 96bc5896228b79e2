-- repair_keys: fixes what is known of the keys for which jobs wait, some in a call.
local MOST_REPAIRED = 2000 -- keys that one repair looks at, in several calls
local MOST_KEYS_MENDED = 20 -- keys that one of these calls looks at

local function is_place(name)
    local lane = string.match(name, "^%S+ (%S+)$")
    return lane and lanes.is_one(lane)
end

-- Drops from a sub-lane what does not wait there, and keeps back what is in no other place.
local function fix_one_sublane(its_key, type, lane)
    local sublane = key.sublane(its_key, type, lane)
    if not sound.has_type(sublane, "zset") then
        return
    end
    local written = redis.call("HGET", key.of_key(its_key), type .. " " .. lane)
    local standing = string.match(written, "^%d+ %S+ (%S+)$")
    if standing and not (redis.call("ZSCORE", sublane, standing)
        and redis.call("ZSCORE", key.lane(type, lane), standing)) then
        repair_keyed_jobs.fix_written(its_key, type, lane, "")
        spoiled.record("job " .. standing .. ", which does not stand for key " .. its_key)
    end
    sound.has_type(key.lane(type, lane), "zset")
    sound.has_type(key.kept_back(type, lane), "zset")
    repair_keyed_jobs.with_some_of(sublane, function(id, time)
        local row = repair_keyed_jobs.row(id)
        local found = true
        if not repair_keyed_jobs.waits_in(row, type, lane) or row.key ~= its_key then
            redis.call("ZREM", sublane, id)
        elseif tonumber(time) ~= tonumber(row.enqueued) then
            redis.call("ZADD", sublane, row.enqueued, id)
        elseif not (redis.call("ZSCORE", key.lane(type, lane), id)
            or redis.call("ZSCORE", key.kept_back(type, lane), id)) then
            key_standing.keep_back(id, type, lane, row.enqueued)
        else
            found = false
        end
        if found then
            spoiled.record("job " .. id .. " in a sub-lane of key " .. its_key)
        end
        return found
    end)
    if repair_keyed_jobs.fix_written(its_key, type, lane) then
        spoiled.record("the sub-lane of key " .. its_key .. " for " .. type .. " " .. lane)
    end
end

-- Drops what holds the key without a claim.
local function fix_holders(its_key)
    if sound.has_type(key.held(its_key), "zset") then
        repair_keyed_jobs.with_some_of(key.held(its_key), function(id, fence)
            local row = repair_keyed_jobs.row(id)
            local is_claimed = row and row.key == its_key and sound.has_type(key.claims(row.worker), "hash")
                and redis.call("HGET", key.claims(row.worker), id) == fence
            if not is_claimed then
                redis.call("ZREM", key.held(its_key), id)
                spoiled.record("job " .. id .. ", which does not hold key " .. its_key)
            end
            return not is_claimed
        end)
    end
end

local function fix_key(its_key)
    sound.has_type(key.of_key(its_key), "hash")
    sound.keep_fields(key.of_key(its_key), function(value, name)
        if string.sub(name, 1, 1) == "=" then
            return string.find(value, "^[1-9]%d*$") or string.find(value, "^[1-9]%d*/[1-9]%d*$")
        end
        if string.sub(name, 1, 1) == "@" then
            return sound.is_whole(value)
        elseif name == "turn" then
            local began, until_us = string.match(value, "^%S+ (%d+) (%d+)$")
            return sound.is_whole(began) and sound.is_whole(until_us)
        end
        return name == "retry" or is_place(name)
    end)
    for _, name in ipairs(redis.call("HKEYS", key.of_key(its_key))) do
        if is_place(name) then
            fix_one_sublane(its_key, string.match(name, "^(%S+) (%S+)$"))
        end
    end
    fix_holders(its_key)
    local retry = redis.call("HGET", key.of_key(its_key), "retry")
    local row = retry and repair_keyed_jobs.row(retry)
    if retry and not (row and row.key == its_key and (row.state == "pending" or row.state == "scheduled")) then
        redis.call("HDEL", key.of_key(its_key), "retry")
        spoiled.record("the retry of " .. key.of_key(its_key))
    end
    key_rows.of_call().known[its_key] = nil
end

-- RETURNS whether the turn of a key begins later: the clock was set back. Nobody spoiled it, and a tick ends it; but
-- ticks come to the key when the turn was to be over.
local function has_turn_of_later(its_key)
    local turn = redis.call("HGET", key.of_key(its_key), "turn")
    local began = string.match(turn or "", "^%S+ (%d+) %d+$")
    return began and tonumber(began) > call.now_us
end

-- RETURNS the position of the first key that a repair looks at: there may be very many, and each has its turn.
function repair_keys.first()
    local turns = math.ceil(redis.call("ZCARD", key.waiting_keys) / MOST_REPAIRED)
    return math.floor(call.now_us / 60000000) % math.max(1, turns) * MOST_REPAIRED
end

-- Fixes keys from the position `from` on. RETURNS the position to go on from, nil if those were all; and the types of
-- which jobs may start since. Keys that a tick is about to settle are left to it.
function repair_keys.fix(from)
    local now = tonumber(keyed.revision())
    local after = math.min(from + MOST_KEYS_MENDED, from - from % MOST_REPAIRED + MOST_REPAIRED)
    local keys = redis.call("ZRANGE", key.waiting_keys, from, after - 1, "WITHSCORES")
    local number = 0
    while number < #keys / 2 and call.looks < repair_keyed_jobs.MOST_LOOKS do
        local its_key, agreed = keys[2 * number + 1], keys[2 * number + 2]
        number = number + 1
        fix_key(its_key)
        if not sound.is_whole(agreed) or tonumber(agreed) > now then
            redis.call("ZADD", key.waiting_keys, 0, its_key) -- the next tick settles it
            spoiled.record("the revision of key " .. its_key)
        elseif tonumber(agreed) == now then
            local due = redis.call("ZSCORE", key.due_keys, its_key)
            if due and tonumber(due) > call.now_us and has_turn_of_later(its_key) then
                due = protocol.AT_ONCE_US
                redis.call("ZADD", key.due_keys, due, its_key)
            end
            -- The time alone changes a rate: a tick settles that, if it is to come to the key at all.
            local is_rate = string.find(its_key, "^rate%%3A")
            local stands = false
            for _, sublane in pairs(is_rate and key_rows.read(its_key).sublanes or {}) do
                stands = stands or sublane.standing ~= ""
            end
            local is_awaited = due and tonumber(due) and tonumber(due) < 2e18
            local is_left = is_rate and (is_awaited or stands)
            if not is_left and (not due or (tonumber(due) or 0) > call.now_us) then
                keyed.settle_again(its_key)
            end
        end
    end
    local types = {}
    for type, has_gained in pairs(call.moved) do
        types[#types + 1] = has_gained and type or nil
    end
    if #types > 0 then
        spoiled.record("keys whose jobs may start")
    end
    call.moved = {}
    local has_more = from + number < after and number < #keys / 2
        or from + number == after and after % MOST_REPAIRED > 0
    return has_more and from + number or nil, types
end
