-- keyed: jobs that have a key. A key has a limit: at most so many of its jobs hold it, each from its claim until its
-- release; or a rate: at most so many start in a period. All others wait.
-- A lane has the pending jobs of one type, mode and priority; a claim takes its first job. What waits for a key is in
-- sub-lanes, one for each key and lane, in the order of the lane. A job stands in its lane while a claim may take it:
-- while the key has room, the first job of each of its sub-lanes does; all others are kept back. So claims meet only
-- jobs that may start. To renew a key is to find out again which jobs stand (`key_standing`).
-- What a key holds is a copy of claims: a claim that is removed, after a crash as well, frees it.
-- Below, `its` is what is known of `its_key` (`key_rows.read`).
-- Cost: that of `key_standing.renew`, and a few commands.

-- Reads a key again, whose rows, settings or pause the call has changed by another way, and renews it.
function keyed.renew(its_key)
    key_rows.of_call().known[its_key] = nil
    key_rows.read(its_key).waits = true
    key_standing.renew(its_key, true)
end

-- RETURNS how often the limits of keys have changed: the score in `waiting_keys` of a key that was renewed since.
function keyed.revision()
    return redis.call("HGET", key.settings, "limits_revision") or "0"
end

-- Adds a job to those that wait for its key. `fresh`: the job, if it was published just now: then the limit that it
-- states is that of its task; else nil.
function keyed.enter(id, type, lane, enqueued, fresh)
    if fresh then
        key_rows.know(id, fresh.rules, fresh.task_name)
    end
    local its_key, states = key_rows.rules_of(id)
    if not its_key then
        lanes.add(id, type, lane, enqueued)
        call.gained[type] = true
        return
    end
    local its, name, task = key_rows.read(its_key), type .. " " .. lane, "=" .. key_rows.of_call().task[id]
    if its.stated[task] ~= states and (fresh or not its.stated[task]) then
        redis.call("HSET", key.of_key(its_key), task, states)
        its.stated[task] = states
    end
    redis.call("ZADD", key.sublane(its_key, type, lane), enqueued, id)
    if not its.waits then
        redis.call("ZADD", key.waiting_keys, "NX", keyed.revision(), its_key)
        its.waits = true
    end
    local sublane = its.sublanes[name] or { type = type, lane = lane, standing = "" }
    its.sublanes[name] = sublane
    local enqueued_us, first_us = tonumber(enqueued), tonumber(sublane.enqueued)
    if not first_us or score.is_older(enqueued_us, id, first_us, sublane.first) then
        sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true
    end
    key_standing.renew(its_key, true)
    if sublane.standing ~= id then
        key_standing.keep_back(id, type, lane, enqueued)
    end
end

-- Removes a job, which is not in its lane any more, from its sub-lane. The caller renews the key.
local function remove(its_key, its, id, type, lane)
    local name = type .. " " .. lane
    local place, sublane = key.sublane(its_key, type, lane), its.sublanes[name]
    redis.call("ZREM", place, id)
    if sublane and sublane.standing == id then
        sublane.standing, sublane.is_changed = "", true
    end
    if sublane and sublane.first == id then
        local first, enqueued = unpack(redis.call("ZRANGE", place, 0, 0, "WITHSCORES"))
        if first then
            sublane.first, sublane.enqueued, sublane.is_changed = first, enqueued, true
        else
            redis.call("HDEL", key.of_key(its_key), name)
            its.sublanes[name] = nil
        end
    end
end

-- Removes job `id`, which ends or moves, from what waits for its key. If the key was kept for it, it is no more.
function keyed.leave(id, type, lane)
    key_standing.heads_change()
    if not key_standing.let_go(id, type, lane) then
        lanes.remove(id, type, lane)
        call.gained[type] = call.gained[type] or false
    end
    local its_key = key_rows.rules_of(id)
    if not its_key then
        return
    end
    local its = key_rows.read(its_key)
    remove(its_key, its, id, type, lane)
    if its.retry == id then
        key_rows.keep_for_nobody(its_key, its, "retry")
        its.waits = true
    end
    key_standing.renew(its_key, false)
end

-- RETURNS whether the key has room for job `id`, which stands in its lane.
local function has_room_for(id, its_key, its)
    local room, due_us = key_room.room_of(its_key, its)
    if due_us ~= nil then -- no setting changes a rate: a job stands in vain only until a tick gets to it
        return not (due_us and redis.call("ZSCORE", key.due_keys, its_key))
    elseif its.retry then
        return its.retry == id and room >= 0
    end
    return key_turns.has_room_for_type(its.turn and redis.call("HGET", key.job(id), "type"), room, its)
end

-- RETURNS whether job `id`, which stands in its lane, may start. If its key has no room for it, since its limit was
-- lowered just now or a tick is to go on with the key, the job is kept back from now on.
function keyed.may_start(id)
    local its_key = key_rows.rules_of(id)
    local its = its_key and key_rows.read(its_key)
    if not its_key or has_room_for(id, its_key, its) then
        return true
    end
    key_standing.heads_change()
    local type, lane, enqueued = unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued"))
    local sublane = type and lane and its.sublanes[type .. " " .. lane]
    if sublane and sublane.standing == id then -- at first: `renew` may leave this sub-lane to a tick
        local heads = redis.call("HGET", key.heads, type) or ""
        lanes.write(type, key_standing.let_stand(its_key, sublane, "", heads))
        call.gained[type] = call.gained[type] or false
    end
    key_standing.renew(its_key, false)
    if type and lane and redis.call("ZSCORE", key.lane(type, lane), id) then -- somebody deleted that it stands there
        lanes.remove(id, type, lane)
        key_standing.keep_back(id, type, lane, enqueued or call.now)
        call.gained[type] = call.gained[type] or false
    end
    return false
end

-- Job `id`, which was popped from its lane, was claimed: it holds its key, or counts as a start of its rate.
function keyed.hold(id, type, lane, fence)
    local its_key = key_rows.rules_of(id)
    if not its_key then
        return
    end
    local its = key_rows.read(its_key)
    remove(its_key, its, id, type, lane)
    local most, period_us, interval_us = key_room.rate_of(its.stated)
    if most then
        local free_us = math.max(key_room.free_at(its_key, period_us), call.now_us)
        redis.call("ZADD", key.rates, call.text(free_us + interval_us), its_key)
    else
        redis.call("ZADD", key.held(its_key), fence, id)
        its.held = its.held + 1
        key_turns.end_turn(its_key, its, type)
    end
    if its.retry then
        key_rows.keep_for_nobody(its_key, its, "retry")
    end
    key_standing.renew(its_key, false)
end

-- RETURNS the retry of job `id`, a waiting job of the same task and key; its type; and whether it may start now. Nil if
-- there is none, or a pause or limit holds its type back.
local function retry_of(id, its_key)
    local task = redis.call("HGET", key.job(id), "task") or ""
    for _, other in ipairs((find_by.jobs_of_task(task, 0, protocol.MOST_MOVES))) do
        local state, type = unpack(redis.call("HMGET", key.job(other), "state", "type"))
        local waits = other ~= id and (state == "pending" or state == "scheduled")
        if waits and type and key_rows.rules_of(other) == its_key and key_turns.is_open(type) then
            return other, type, state == "pending"
        end
    end
end

-- Frees the key of job `id` of `type`, whose claim was removed. With `keep_order` the key is kept for the job's retry.
-- `rules`, `name`: what the job's row says.
function keyed.free(id, type, rules, name)
    key_rows.know(id, rules, name)
    local its_key, _, keeps_order = key_rows.rules_of(id)
    if not its_key or redis.call("ZREM", key.held(its_key), id) == 0 then
        return
    end
    local known = key_rows.of_call().known[its_key]
    if known then
        known.held = known.held - 1
    end
    local its, retry, its_type, is_pending = key_rows.read(its_key), nil, nil, nil
    if keeps_order ~= "" then
        retry, its_type, is_pending = retry_of(id, its_key)
    end
    if retry then
        -- It may stand already: then `renew` changes nothing.
        call.gained[its_type] = is_pending or call.gained[its_type]
        redis.call("HSET", key.of_key(its_key), "retry", retry)
        its.retry = retry
    elseif not its.turn and not its.retry then
        key_turns.give_turn(its_key, its, type)
    end
    key_standing.renew(its_key, true)
end

-- Has the caller fill free slots with jobs of the types of which a job of the key stands.
local function fill_standing(its_key)
    for _, sublane in pairs(key_rows.read(its_key).sublanes) do
        call.gained[sublane.type] = call.gained[sublane.type] or sublane.standing ~= ""
    end
end

-- Renews the keys whose limits have changed, and those that a tick is to look at by now: MOST_KEYS of each kind.
-- RETURNS whether there may be more.
function keyed.recheck()
    if redis.call("EXISTS", key.waiting_keys, key.rates) == 0 then
        return false
    end
    local now = keyed.revision()
    local stale = redis.call("ZRANGEBYSCORE", key.waiting_keys, "-inf", "(" .. now, "LIMIT", 0, protocol.MOST_KEYS)
    local due = redis.call("ZRANGEBYSCORE", key.due_keys, "-inf", call.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(due) do
        redis.call("ZREM", key.due_keys, its_key)
    end
    for _, its_key in ipairs(stale) do
        redis.call("ZADD", key.waiting_keys, now, its_key)
        keyed.renew(its_key)
    end
    for _, its_key in ipairs(due) do
        -- The arrow that made the key due may have renewed it, and filled no slots; a publish leaves a job to this tick
        -- that comes beside one which stands in vain.
        fill_standing(its_key)
        keyed.renew(its_key)
    end
    local free = redis.call("ZRANGEBYSCORE", key.rates, "-inf", call.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(free) do -- all jobs of these rates may start at once again
        redis.call("ZREM", key.rates, its_key)
    end
    return key_rows.of_call().is_unfinished or math.max(#stale, #due, #free) == protocol.MOST_KEYS
end
