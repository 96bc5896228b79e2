-- keyed: jobs with keys: at most so many of one key hold it, each from its claim to its release; or so many start
-- in a period, if the key is that of a rate. The others wait in sub-lanes, one for each key, type and lane, in the
-- order of the lane. While the key has room, the first job of each of its sub-lanes stands in the lane; while the key
-- has none, none does: so claims meet only jobs that may start. What a key holds is derived from claims: a crash frees
-- it with the claim.
-- Cost: some ten commands; O(log n) for each sub-lane of which another job stands: mostly one or two.
-- A reason for the length: all that has jobs of a key wait, stand and go, in one place.
-- @include base/clock.lua
-- @include fleet/workers.lua
-- @include placing/lanes.lua
-- @include jobs/find_by_task.lua
-- @include jobs/key_rows.lua
-- @include jobs/key_room.lua
-- @include jobs/key_turns.lua
-- @include jobs/key_portions.lua
local keyed = {}

-- Is called before heads are read or written.
local function heads_change()
    if before_heads_change then
        before_heads_change()
    end
end

-- Has a job wait out of its lane.
local function keep_back(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Has a job no longer wait out of its lane. RETURNS whether it did.
local function let_go(id, type, lane)
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
local function let_stand(its_key, sublane, wanted, heads)
    local type, lane, standing = sublane.type, sublane.lane, sublane.standing
    if standing ~= "" then
        heads = lanes.without(standing, type, lane, heads)
        local enqueued = enqueued_of(its_key, sublane, standing)
        if enqueued then
            keep_back(standing, type, lane, enqueued)
        end
    end
    if wanted ~= "" then
        let_go(wanted, type, lane)
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
        redis.call("ZADD", key.due_keys, clock.text(due_us), its_key)
        local is_soon = due_us - clock.now_us < protocol.TICK_US
        if is_soon and redis.call("ZRANGE", key.due_keys, 0, 0)[1] == its_key then
            workers.have_one_tick()
        end
    end
end

-- Brings the lanes up to date with what the key has room for. `gains`: whether types that gain a job are to be filled.
local function settle(its_key, gains)
    local its = read_key(its_key)
    if its.turn then
        end_turn_in_vain(its_key, its, gains)
    end
    if not next(its.sublanes) then
        forget(its_key, its)
        return
    end
    local room, due_us = room_of(its_key, its)
    if not gains and due_us ~= nil and redis.call("ZSCORE", key.due_keys, its_key) then
        room, due_us = 0, nil -- a rate that lets no job start goes on so until a tick says otherwise
    end
    if due_us ~= nil then
        look_again(its_key, due_us)
    end
    local wanted = {}
    for _, sublane in pairs(its.sublanes) do
        local job = has_room_for_type(sublane.type, room, its) and sublane.first or ""
        if its.retry then
            job = room >= 0 and enqueued_of(its_key, sublane, its.retry) and its.retry or ""
        end
        wanted[sublane] = job ~= sublane.standing and job or nil
    end
    local before, after = {}, {} -- type -> its heads
    local changed = next(wanted) and changed_now(its_key, wanted) or {}
    if #changed > 0 then
        heads_change()
    end
    for _, sublane in ipairs(changed) do
        local type = sublane.type
        before[type] = before[type] or redis.call("HGET", key.heads, type) or ""
        after[type] = let_stand(its_key, sublane, wanted[sublane], after[type] or before[type])
        moved[type] = moved[type] or (gains and wanted[sublane] ~= "")
    end
    for type, heads in pairs(after) do
        if heads ~= before[type] then
            lanes.rewrite(type, heads, before[type])
        end
    end
    write_sublanes(its_key, its)
end

-- As `settle`, of a key of which others wrote something: what was read of it counts no more. Settings, and whether
-- anything is paused at all, are read first after a script has changed them.
function keyed.settle_again(its_key)
    known[its_key] = nil
    read_key(its_key).waits = true
    settle(its_key, true)
end

-- RETURNS the number of changes that the limits have seen: the score in `waiting_keys` of a key that agrees with them.
local function revision()
    return redis.call("HGET", key.settings, "limits_revision") or "0"
end

-- Has a job wait. `fresh`: the job as it was published just now: then what it states counts for its task; else nil.
function keyed.enter(id, type, lane, enqueued, fresh)
    if fresh then
        know(id, fresh.rules, fresh.task_name)
    end
    local its_key, states = rules_of(id)
    if not its_key then
        lanes.add(id, type, lane, enqueued)
        moved[type] = true
        return
    end
    local its, name, task = read_key(its_key), type .. " " .. lane, "=" .. task_of[id]
    if its.stated[task] ~= states and (fresh or not its.stated[task]) then
        redis.call("HSET", key.of_key(its_key), task, states)
        its.stated[task] = states
    end
    redis.call("ZADD", key.sublane(its_key, type, lane), enqueued, id)
    if not its.waits then
        redis.call("ZADD", key.waiting_keys, "NX", revision(), its_key)
        its.waits = true
    end
    local sublane = its.sublanes[name] or { type = type, lane = lane, standing = "" }
    its.sublanes[name] = sublane
    local enqueued_us, first_us = tonumber(enqueued), tonumber(sublane.enqueued)
    if not first_us or enqueued_us < first_us or (enqueued_us == first_us and id < sublane.first) then
        sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true
    end
    settle(its_key, true)
    if sublane.standing ~= id then
        keep_back(id, type, lane, enqueued)
    end
end

-- Removes a job, which is in its lane no more, from its sub-lane. The caller settles.
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

-- Job `id` waits no more.
function keyed.leave(id, type, lane)
    heads_change()
    if not let_go(id, type, lane) then
        lanes.remove(id, type, lane)
        moved[type] = moved[type] or false
    end
    local its_key = rules_of(id)
    if not its_key then
        return
    end
    local its = read_key(its_key)
    remove(its_key, its, id, type, lane)
    if its.retry == id then
        keep_for_nobody(its_key, its, "retry")
        its.waits = true
    end
    settle(its_key, false)
end

-- RETURNS whether what a key has room for lets job `id`, which stands in its lane, start. Of a key with very many
-- sub-lanes jobs may stand there in vain until a tick.
local function has_room_for(id, its_key, its)
    local room, due_us = room_of(its_key, its)
    if due_us ~= nil then -- no setting changes a rate: what stands may start, but for such jobs
        return not (due_us and redis.call("ZSCORE", key.due_keys, its_key))
    elseif its.retry then
        return its.retry == id and room >= 0
    end
    return has_room_for_type(its.turn and redis.call("HGET", key.job(id), "type"), room, its)
end

-- RETURNS whether job `id`, which stands in its lane, may start. If not, since the limit was lowered just now, it does
-- not stand there any more.
function keyed.may_start(id)
    local its_key = rules_of(id)
    local its = its_key and read_key(its_key)
    if not its_key or has_room_for(id, its_key, its) then
        return true
    end
    heads_change()
    local type, lane, enqueued = unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued"))
    local sublane = type and lane and its.sublanes[type .. " " .. lane]
    if sublane and sublane.standing == id then -- first: the call may not get to it
        local heads = redis.call("HGET", key.heads, type) or ""
        lanes.rewrite(type, let_stand(its_key, sublane, "", heads), heads)
        moved[type] = moved[type] or false
    end
    settle(its_key, false)
    if type and lane and redis.call("ZSCORE", key.lane(type, lane), id) then -- somebody deleted that it stands there
        lanes.remove(id, type, lane)
        keep_back(id, type, lane, enqueued or clock.now)
        moved[type] = moved[type] or false
    end
    return false
end

-- Job `id`, which was popped from its lane, was claimed: it holds its key, or took one of the starts of a rate.
function keyed.hold(id, type, lane, fence)
    local its_key = rules_of(id)
    if not its_key then
        return
    end
    local its = read_key(its_key)
    remove(its_key, its, id, type, lane)
    local most, period_us, interval_us = rate_of(its.stated)
    if most then
        local free_us = math.max(free_at(its_key, period_us), clock.now_us)
        redis.call("ZADD", key.rates, clock.text(free_us + interval_us), its_key)
    else
        redis.call("ZADD", key.held(its_key), fence, id)
        its.held = its.held + 1
        end_turn(its_key, its, type)
    end
    if its.retry then
        keep_for_nobody(its_key, its, "retry")
    end
    settle(its_key, false)
end

-- RETURNS a job of the key that waits, and is of the same task as job `id`: its retry, and the type of that; nil if
-- there is none, or its type is held back.
local function retry_of(id, its_key)
    local task = redis.call("HGET", key.job(id), "task") or ""
    for _, other in ipairs((find_by_task.some(task, 0, protocol.MOST_MOVES))) do
        local state, type = unpack(redis.call("HMGET", key.job(other), "state", "type"))
        local waits = other ~= id and (state == "pending" or state == "scheduled")
        if waits and type and rules_of(other) == its_key and is_open(type) then
            return other, type
        end
    end
end

-- The claim of job `id` of `type` was removed, whose row says `rules` and `name`.
function keyed.free(id, type, rules, name)
    know(id, rules, name)
    local its_key, _, keeps_order = rules_of(id)
    if its_key and redis.call("ZREM", key.held(its_key), id) == 1 then
        if known[its_key] then
            known[its_key].held = known[its_key].held - 1
        end
        local its = read_key(its_key)
        local retry, its_type
        if keeps_order ~= "" then
            retry, its_type = retry_of(id, its_key)
        end
        if retry then
            moved[its_type] = true -- it may stand already, left to a tick
            redis.call("HSET", key.of_key(its_key), "retry", retry)
            its.retry = retry
        elseif not its.turn and not its.retry then
            give_turn(its_key, its, type)
        end
        settle(its_key, true)
    end
end

-- Has the types be filled of which a job of the key stands in a lane.
local function gain_standing(its_key)
    for _, sublane in pairs(read_key(its_key).sublanes) do
        moved[sublane.type] = moved[sublane.type] or sublane.standing ~= ""
    end
end

-- Settles keys that the limits or the time may let go on, as many as one call may. RETURNS whether there may be more.
function keyed.recheck()
    local now = revision()
    local stale = redis.call("ZRANGEBYSCORE", key.waiting_keys, "-inf", "(" .. now, "LIMIT", 0, protocol.MOST_KEYS)
    local due = redis.call("ZRANGEBYSCORE", key.due_keys, "-inf", clock.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(due) do
        redis.call("ZREM", key.due_keys, its_key)
    end
    for _, its_key in ipairs(stale) do
        redis.call("ZADD", key.waiting_keys, now, its_key)
        keyed.settle_again(its_key)
    end
    for _, its_key in ipairs(due) do
        gain_standing(its_key) -- who publishes beside a job that stands in vain leaves its own to this call
        keyed.settle_again(its_key)
        gain_standing(its_key) -- who made the key due may have settled it, and filled no slots
    end
    local free = redis.call("ZRANGEBYSCORE", key.rates, "-inf", clock.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(free) do -- all starts of these are free again
        redis.call("ZREM", key.rates, its_key)
    end
    return is_unfinished or math.max(#stale, #due, #free) == protocol.MOST_KEYS
end
