-- key_standing: which jobs of a key stand in their lanes, by the room that the key has: the first job of each of its
-- sub-lanes, or none. The others wait out of their lanes.
-- Cost: some ten commands; O(log n) for each sub-lane of which another job stands: mostly one or two.

-- Is called before heads are read or written.
function key_standing.heads_change()
    if call.before_heads_change then
        call.before_heads_change()
    end
end

-- Has a job wait out of its lane.
function key_standing.keep_back(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Has a job no longer wait out of its lane. RETURNS whether it did.
function key_standing.let_go(id, type, lane)
    local did_wait = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if did_wait and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return did_wait
end

-- RETURNS the enqueue time of job `id`, which waits in `sublane`; nil if somebody else wrote that it does.
local function enqueued_of(its_key, sublane, id)
    return id == sublane.first and sublane.enqueued
        or redis.call("ZSCORE", key.sublane(its_key, sublane.type, sublane.lane), id)
end

-- Has job `wanted` stand in the lane of `sublane` instead of the one that does; "" is no job. `heads`: of its type.
-- RETURNS the heads after that, which the caller writes.
function key_standing.let_stand(its_key, sublane, wanted, heads)
    local type, lane, standing = sublane.type, sublane.lane, sublane.standing
    if standing ~= "" then
        heads = lanes.without(standing, type, lane, heads)
        local enqueued = enqueued_of(its_key, sublane, standing)
        if enqueued then
            key_standing.keep_back(standing, type, lane, enqueued)
        end
    end
    if wanted ~= "" then
        key_standing.let_go(wanted, type, lane)
        heads = lanes.with(wanted, type, lane, enqueued_of(its_key, sublane, wanted), heads)
    end
    sublane.standing, sublane.is_changed = wanted, true
    return heads
end

-- Forgets a key for which no job waits any more; all of it, if none holds the key either.
local function forget(its_key, its)
    if its.waits then
        redis.call("ZREM", key.waiting_keys, its_key)
        redis.call("ZREM", key.due_keys, its_key)
        its.waits = false
    end
    if its.held == 0 and not its.retry then
        for task in pairs(its.stated) do
            redis.call("HDEL", key.of_key(its_key), task) -- a producer has no right to delete keys
        end
        for type in pairs(its.had) do
            redis.call("HDEL", key.of_key(its_key), "@" .. type)
        end
        its.stated, its.had = {}, {}
    end
end

-- Has a tick look at a key when its rate lets the next job start; `due_us` false: it does now.
local function look_again(its_key, due_us)
    if not due_us then
        redis.call("ZREM", key.due_keys, its_key)
    elseif due_us < (tonumber(redis.call("ZSCORE", key.due_keys, its_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, call.text(due_us), its_key)
        local is_soon = due_us - call.now_us < protocol.TICK_US
        if is_soon and redis.call("ZRANGE", key.due_keys, 0, 0)[1] == its_key then
            workers.have_one_tick()
        end
    end
end

-- Brings the lanes up to date with what the key has room for. `gains`: whether types that gain a job are to be filled.
function key_standing.settle(its_key, gains)
    local its = key_rows.read(its_key)
    if its.turn then
        key_turns.end_turn_in_vain(its_key, its, gains)
    end
    if not next(its.sublanes) then
        forget(its_key, its)
        return
    end
    local room, due_us = key_room.room_of(its_key, its)
    if not gains and due_us ~= nil and redis.call("ZSCORE", key.due_keys, its_key) then
        room, due_us = 0, nil -- a rate that lets no job start goes on so until a tick says otherwise
    end
    if due_us ~= nil then
        look_again(its_key, due_us)
    end
    local wanted = {}
    for _, sublane in pairs(its.sublanes) do
        local job = key_turns.has_room_for_type(sublane.type, room, its) and sublane.first or ""
        if its.retry then
            job = room >= 0 and enqueued_of(its_key, sublane, its.retry) and its.retry or ""
        end
        wanted[sublane] = job ~= sublane.standing and job or nil
    end
    local before, after = {}, {} -- type -> its heads
    local changed = next(wanted) and key_portions.changed_now(its_key, wanted) or {}
    if #changed > 0 then
        key_standing.heads_change()
    end
    for _, sublane in ipairs(changed) do
        local type = sublane.type
        before[type] = before[type] or redis.call("HGET", key.heads, type) or ""
        after[type] = key_standing.let_stand(its_key, sublane, wanted[sublane], after[type] or before[type])
        call.moved[type] = call.moved[type] or (gains and wanted[sublane] ~= "")
    end
    for type, heads in pairs(after) do
        if heads ~= before[type] then
            lanes.rewrite(type, heads, before[type])
        end
    end
    key_rows.write_sublanes(its_key, its)
end
