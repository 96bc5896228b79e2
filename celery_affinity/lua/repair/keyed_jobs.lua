-- repair_keyed_jobs: fixes where jobs with keys wait, from the rows of the jobs. A job waits in two places: in the
-- sub-lane of its key, and in its lane or among those that the key keeps back. Each says which jobs the other lacks.
local MOST_LOOKED_AT = 2 -- jobs of one place in a call, twice that if it has more, while they are as they should be
repair_keyed_jobs.MOST_LOOKS = 24 -- jobs of all places, after which a call goes on with no other lanes or key
local MOST_MENDED = 1000

-- RETURNS what the row of job `id` says of its rules and its place; nil if the row has no rules.
function repair_keyed_jobs.row(id)
    if not marks.has_rules(id) or not sound.has_type(key.job(id), "hash") then
        return nil
    end
    local rules, state, type, lane, enqueued, name, worker = unpack(
        redis.call("HMGET", key.job(id), "rules", "state", "type", "lane", "enqueued", "name", "worker"))
    local its_key, states = string.match(rules or "", "key=(%S+) %l+=(%S+)")
    return its_key and {
        key = its_key, states = states, state = state, type = type, lane = lane, enqueued = enqueued,
        name = name or "", worker = worker or "",
    }
end

-- RETURNS whether `row` is of a job that waits in `lane` of `type`.
function repair_keyed_jobs.waits_in(row, type, lane)
    return row and row.state == "pending" and row.type == type and row.lane == lane and sound.is_whole(row.enqueued)
end

-- Calls `fix` with jobs of the sorted set `place`: its first ones, and others whose turn comes with time, since there
-- may be very many. Goes on while `fix` returns that it found something.
function repair_keyed_jobs.with_some_of(place, fix)
    local number = redis.call("ZCARD", place)
    local turn = math.floor(call.now_us / 60000000) * MOST_LOOKED_AT
    for _, from in ipairs(number > MOST_LOOKED_AT and { 0, turn % number } or { 0 }) do
        local at, fixed = from, 0
        repeat
            local ids, found = redis.call("ZRANGE", place, at, at + MOST_LOOKED_AT - 1, "WITHSCORES"), false
            call.looks = call.looks + #ids / 2
            for i = 1, #ids, 2 do
                found = fix(ids[i], ids[i + 1]) or found
            end
            at, fixed = at + MOST_LOOKED_AT, fixed + MOST_LOOKED_AT
        until not found or #ids == 0 or fixed >= MOST_MENDED
    end
end

-- Makes what is written of a sub-lane agree with it. `standing`: the job that stands in the lane, "" for none; nil if
-- that is to stay as it is written. RETURNS whether it did not agree.
function repair_keyed_jobs.fix_written(its_key, type, lane, standing)
    local name = type .. " " .. lane
    local written = redis.call("HGET", key.of_key(its_key), name)
    local first, enqueued = unpack(redis.call("ZRANGE", key.sublane(its_key, type, lane), 0, 0, "WITHSCORES"))
    standing = standing or string.match(written or "", "^%d+ %S+ (%S+)$") or ""
    local text = first and enqueued .. " " .. first .. (standing ~= "" and " " .. standing or "")
    if (text or false) == written then
        return false
    elseif text then
        redis.call("HSET", key.of_key(its_key), name, text)
    else
        redis.call("HDEL", key.of_key(its_key), name)
    end
    key_rows.of_call().known[its_key] = nil
    return true
end

-- Makes what says of job `id`, which is in `lane` or kept back from it, agree with its row. RETURNS whether it did not.
local function fix_sublane(id, type, lane, row, stands)
    local its_key, sublane = row.key, key.sublane(row.key, type, lane)
    sound.has_type(sublane, "zset")
    sound.has_type(key.of_key(its_key), "hash")
    local was_right = tonumber(redis.call("ZSCORE", sublane, id)) == tonumber(row.enqueued)
    if not was_right then
        redis.call("ZADD", sublane, row.enqueued, id)
    end
    if repair_keyed_jobs.fix_written(its_key, type, lane, stands and id or nil)
        or redis.call("ZADD", key.waiting_keys, "NX", keyed.revision(), its_key) == 1
        or redis.call("HSETNX", key.of_key(its_key), "=" .. row.name, row.states) == 1 then
        was_right = false
    end
    if not was_right then
        keyed.settle_again(its_key)
        spoiled.record("the sub-lanes of key " .. its_key .. ", which lacked job " .. id)
    end
    return not was_right
end

-- Fixes the jobs with keys that stand in `lane` of `type`, and those that are kept back from it.
function repair_keyed_jobs.fix(type, lane)
    if sound.has_type(key.lane(type, lane), "zset") then
        repair_keyed_jobs.with_some_of(key.lane(type, lane), function(id)
            local row = repair_keyed_jobs.row(id)
            local found = repair_keyed_jobs.waits_in(row, type, lane) and fix_sublane(id, type, lane, row, true)
            return row and not keyed.may_start(id) or found
        end)
    end
    local place, name = key.kept_back(type, lane), type .. " " .. lane
    if sound.has_type(place, "zset") then
        if redis.call("HSETNX", key.kept_lanes, name, 1) == 1 then
            spoiled.record(key.kept_lanes .. ", which lacked " .. name)
        end
        repair_keyed_jobs.with_some_of(place, function(id, time)
            local row = repair_keyed_jobs.row(id)
            if repair_keyed_jobs.waits_in(row, type, lane) then
                return fix_sublane(id, type, lane, row, false)
            end
            -- Nothing says what keeps it back: it goes the way of a job without rules.
            key_standing.let_go(id, type, lane)
            if string.find(id, "^[!-~]+$") then
                lanes.add(id, type, lane, sound.is_whole(time) and time or call.now)
            end
            spoiled.record("job " .. id .. ", which no key keeps back")
            return true
        end)
    elseif redis.call("HDEL", key.kept_lanes, name) == 1 then
        spoiled.record(key.kept_lanes .. ", which had " .. name)
    end
end

-- A job with a key that is claimed holds it. `fence`: of the claim.
function repair_keyed_jobs.fix_held(id, fence)
    local row = repair_keyed_jobs.row(id)
    if not row or string.find(row.states, "/", 1, true) then
        return -- a rate is held by nobody
    end
    sound.has_type(key.held(row.key), "zset")
    if redis.call("ZSCORE", key.held(row.key), id) ~= fence then
        redis.call("ZADD", key.held(row.key), fence, id)
        sound.has_type(key.of_key(row.key), "hash")
        redis.call("HSETNX", key.of_key(row.key), "=" .. row.name, row.states)
        key_rows.of_call().known[row.key] = nil
        spoiled.record(key.held(row.key) .. ", which lacked job " .. id)
    end
end
