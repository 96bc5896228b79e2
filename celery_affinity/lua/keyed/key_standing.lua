-- key_standing: which jobs of a key stand in their lanes: while the key has room, the first job of each of its
-- sub-lanes; else none. All others of the key are kept back (key `kept_back`).
-- A key may have very many sub-lanes. In one call of an arrow jobs come to stand in the lanes of MOST_OPENED of them at
-- most, and leave the lanes of twice as many; the next tick goes on. A job that stands though its key has no room any
-- more does not start: see `keyed.may_start`.
-- Cost: some ten commands; O(log n) for each sub-lane of which another job stands: mostly one or two.

-- Is called before heads (the first jobs of all lanes of a type, in key `heads`) are read or written here: a claim that
-- is under way writes its own changes first.
function key_standing.heads_change()
    if call.before_heads_change then
        call.before_heads_change()
    end
end

-- Keeps a job back: it waits, and not in its lane.
function key_standing.keep_back(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Keeps a job back no more. RETURNS whether it was kept back.
function key_standing.let_go(id, type, lane)
    local was_kept = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if was_kept and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return was_kept
end

-- RETURNS the enqueue time of job `id`; nil if it does not wait in `sublane`.
local function enqueued_of(its_key, sublane, id)
    return id == sublane.first and sublane.enqueued
        or redis.call("ZSCORE", key.sublane(its_key, sublane.type, sublane.lane), id)
end

-- Has job `wanted`, "" for none, stand in the lane of `sublane` instead of the job that does. `heads`: those of its
-- type. RETURNS the heads after that, which the caller writes.
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

-- RETURNS a text that sorts a sub-lane by the age of its first job; times have as many digits as each other.
local function by_age(sublane)
    return sublane.enqueued .. " " .. sublane.first
end

-- RETURNS a text that sorts a sub-lane by its lane, the most urgent first, then by age.
local function by_urgency(sublane)
    return 99 - lanes.number(sublane.lane) .. " " .. by_age(sublane)
end

-- RETURNS `sublanes` in the order of what `text_of` makes of each.
local function sorted(sublanes, text_of)
    local names, of_name, list = {}, {}, {}
    for nth, sublane in ipairs(sublanes) do
        names[nth] = text_of(sublane)
        of_name[names[nth]] = sublane
    end
    table.sort(names)
    for nth, name in ipairs(names) do
        list[nth] = of_name[name]
    end
    return list
end

-- RETURNS `most` of `sublanes`: the oldest and the most urgent by turns, so that neither has to wait for a tick.
local function some_of(sublanes, most)
    local some, is_in = {}, {}
    local oldest, most_urgent = sorted(sublanes, by_age), sorted(sublanes, by_urgency)
    for nth = 1, math.ceil(most / 2) do
        for _, sublane in ipairs({ oldest[nth], most_urgent[nth] }) do
            some[#some + 1] = not is_in[sublane] and sublane or nil
            is_in[sublane] = true
        end
    end
    return some
end

-- RETURNS those of the sub-lanes in `wanted` that this call may change; a tick goes on with the others. `wanted`:
-- sub-lane -> the job that is to stand in its lane instead of the one that does.
local function changed_now(its_key, wanted)
    local keys, opened, closed = key_rows.of_call(), {}, {}
    for sublane, job in pairs(wanted) do
        local some = job == "" and closed or opened
        some[#some + 1] = sublane
    end
    local number = #opened + #closed
    if #opened > keys.left_to_open then
        opened = some_of(opened, keys.left_to_open)
    end
    local changed = { unpack(closed, 1, math.min(#closed, keys.left_to_close)) }
    keys.left_to_open = math.max(0, keys.left_to_open - #opened)
    keys.left_to_close = keys.left_to_close - #changed
    for _, sublane in ipairs(opened) do
        changed[#changed + 1] = sublane
    end
    if #changed < number then
        keys.is_unfinished = true
        if redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key) == 1 then
            workers.have_one_tick()
        end
    end
    return changed
end

-- Forgets that jobs wait for a key, since none does any more; and all of the key if no job holds it either.
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

-- Has a tick look at the key of a rate when its next job may start: at `due_us`; false if one may now.
local function look_again(its_key, due_us)
    if not due_us then
        redis.call("ZREM", key.due_keys, its_key)
    elseif due_us < (tonumber(redis.call("ZSCORE", key.due_keys, its_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, call.text(due_us), its_key)
        workers.tick_in_time(due_us - call.now_us, key.due_keys, its_key)
    end
end

-- RETURNS a table with the sub-lanes of which another job is to stand, as `changed_now` takes it.
local function wanted_of(its_key, its, room)
    local wanted = {}
    for _, sublane in pairs(its.sublanes) do
        local job = key_turns.has_room_for_type(sublane.type, room, its) and sublane.first or ""
        if its.retry then
            job = room >= 0 and enqueued_of(its_key, sublane, its.retry) and its.retry or ""
        end
        wanted[sublane] = job ~= sublane.standing and job or nil
    end
    return wanted
end

-- Renews a key: has those of its jobs stand in their lanes that the key has room for, and no others. `gains`: whether
-- the caller fills free slots with jobs of the types of which a job comes to stand (`call.gained`).
function key_standing.renew(its_key, gains)
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
    local wanted = wanted_of(its_key, its, room)
    local changed = next(wanted) and changed_now(its_key, wanted) or {}
    if #changed > 0 then
        key_standing.heads_change()
    end
    local before, after = {}, {} -- type -> its heads
    for _, sublane in ipairs(changed) do
        local type = sublane.type
        before[type] = before[type] or redis.call("HGET", key.heads, type) or ""
        after[type] = key_standing.let_stand(its_key, sublane, wanted[sublane], after[type] or before[type])
        call.gained[type] = call.gained[type] or (gains and wanted[sublane] ~= "")
    end
    for type, heads in pairs(after) do
        if heads ~= before[type] then
            lanes.write(type, heads)
        end
    end
    key_rows.write_sublanes(its_key, its)
end
