-- admission: which jobs stand for a key: while the key has room, the first job of each of its sub-lanes; else none.
-- A job that stands for its key goes on (`key_steps`).
-- A key may have very many sub-lanes. In one call of an arrow jobs come to stand in the lanes of MOST_OPENED of them at
-- most, and leave the lanes of twice as many; the next tick goes on. A job that stands though its key has no room any
-- more does not start: see `hooks.may_start`.
-- Cost: about ten commands; O(log n) for each sub-lane of which another job stands: mostly one or two.

-- Has `renew_all` renew a key.
function admission.reevaluate_soon(its_key)
    local keys = key_state.cache()
    keys.to_renew = keys.to_renew or {}
    keys.to_renew[its_key] = true
end

-- RETURNS a text that sorts a sub-lane by the age of its first job; times have as many digits as each other.
local function by_age(sublane)
    return sublane.enqueued .. " " .. sublane.first
end

-- RETURNS a text that sorts a sub-lane by its lane, the most urgent first, then by age.
local function by_urgency(sublane)
    return 99 - lanes.number(sublane.lane) .. " " .. by_age(sublane)
end

-- RETURNS `sublanes`, sorted by the text that `text_of` makes of each.
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

-- Has the next tick go on with a key.
function admission.continue_later(its_key)
    key_state.cache().is_unfinished = true
    if redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key) == 1 then
        workers.have_one_tick()
    end
end

-- RETURNS those of the sub-lanes in `wanted` that this call may change; a tick goes on with the others. `wanted`:
-- sub-lane -> the job that is to stand in its lane instead of the one that does.
local function changed_now(its_key, wanted)
    local left, opened, closed = key_state.budget(), {}, {}
    for sublane, job in pairs(wanted) do
        local some = job == "" and closed or opened
        some[#some + 1] = sublane
    end
    local number = #opened + #closed
    if #opened > left.to_open then
        opened = some_of(opened, left.to_open)
    end
    local changed = { unpack(closed, 1, math.min(#closed, left.to_close)) }
    left.to_open = math.max(0, left.to_open - #opened)
    left.to_close = left.to_close - #changed
    for _, sublane in ipairs(opened) do
        changed[#changed + 1] = sublane
    end
    if #changed < number then
        admission.continue_later(its_key)
    end
    return changed
end

-- No job waits for a key any more: forgets the times of types, and the limits too if no job holds the key or is to
-- come.
local function forget(its_key, its)
    if its.waits then
        redis.call("ZREM", key.waiting_keys, its_key)
        redis.call("ZREM", key.due_keys, its_key)
        its.waits = false
    end
    for type in pairs(its.had) do -- who comes later has waited for less long
        redis.call("HDEL", key.of_key(its_key), "@" .. type) -- a producer has no right to delete keys
    end
    its.had = next(its.had) and {} or its.had
    if next(its.stated) and not its.retry and not its.are_some_coming and key_state.held(its_key, its) == 0 then
        for task in pairs(its.stated) do
            redis.call("HDEL", key.of_key(its_key), task)
        end
        its.stated = {}
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

-- RETURNS the sub-lanes in which another job is to stand, as `changed_now` takes them. An unbounded sub-lane has no
-- first job, and none that stands, so it is not among them.
local function wanted_of(its_key, its, room)
    local wanted = {}
    for _, sublane in pairs(its.sublanes) do
        local job = key_turns.has_capacity_for_type(sublane.type, room, its) and sublane.first or ""
        if its.retry then
            job = room >= 0 and key_state.enqueued_of(its_key, sublane, its.retry) and its.retry or ""
        end
        wanted[sublane] = job ~= sublane.standing and job or nil
    end
    return wanted
end

-- Has the jobs in `wanted` stand, as far as this call still may; and writes the heads of their types. `wanted`: as
-- `changed_now` takes it. `fills`, `has_left`: see `renew_all`.
local function let_stand(its_key, wanted, fills, has_left)
    local keys, before, after = key_state.cache(), {}, {} -- type -> its heads
    for _, sublane in ipairs(next(wanted) and changed_now(its_key, wanted) or {}) do
        local type, job = sublane.type, wanted[sublane]
        local is_in_lane
        before[type] = before[type] or lanes.heads_of(type)
        after[type], is_in_lane = key_steps.admit(its_key, sublane, job, after[type] or before[type])
        if has_left and keys.has_left_several and is_in_lane then
            keys.advanced[job] = type .. " " .. sublane.lane
        end
        if is_in_lane and (fills or (has_left and keys.advanced[job])) then
            call.to_fill[type] = true
        end
    end
    for type, heads in pairs(after) do
        if heads ~= before[type] then
            lanes.write(type, heads)
        end
    end
end

-- Renews a key: has those of its jobs stand that the key has room for, and no others. `fills`, `has_left`: see
-- `renew_all`.
local function renew(its_key, fills, has_left)
    local its = key_state.read(its_key)
    if its.turn then
        key_turns.end_turn_unused(its_key, its, fills)
    end
    if not next(its.sublanes) then
        return
    end
    local room, due_us = capacity.capacity_of(its_key, its)
    if not fills and due_us ~= nil and redis.call("ZSCORE", key.due_keys, its_key) then
        room, due_us = 0, nil -- a rate that lets no job start goes on so until a tick says otherwise
    end
    if due_us ~= nil then
        look_again(its_key, due_us)
    end
    let_stand(its_key, wanted_of(its_key, its, room), fills, has_left)
    minimums.renew(its_key, its)
    fair_share.renew(its_key, its)
    if next(its.unkept) then
        unbounded.block(its_key, its)
    end
    key_state.write_sublanes(its_key, its)
end

-- Renews the keys that are to be renewed, and then those to which jobs have gone on, or from which they were called
-- back. `fills`: whether the caller fills free slots with jobs that come into their lanes (`call.to_fill` gets their
-- types). `has_left`: whether a job has left, which may have held up jobs that fit free slots. The loop ends: in each
-- sub-lane the oldest job stands, so after each pass there is one job more, by age, that changes its place no more.
function admission.reevaluate_all(fills, has_left)
    local keys, renewed = key_state.cache(), {}
    keys.has_left, keys.called_back = has_left, false
    while keys.to_renew and not keys.is_renewed_later do
        local some = {}
        for its_key in pairs(keys.to_renew) do
            some[#some + 1] = its_key
            renewed[its_key] = true
        end
        table.sort(some)
        keys.to_renew = false
        for _, its_key in ipairs(some) do
            renew(its_key, fills, has_left)
        end
        if not keys.to_renew then
            key_turns.end_all_unused(fills)
        end
    end
    keys.has_left_several = keys.has_left_several and keys.is_renewed_later
    for its_key in pairs(renewed) do
        local its = key_state.read(its_key)
        if not next(its.sublanes) then
            forget(its_key, its)
        end
    end
end

-- Many jobs are about to leave. Their keys are renewed once, when all have left: else one that is about to leave
-- would get the place of another.
function hooks.many_leave()
    key_state.cache().is_renewed_later = true
end

-- All have left, in an arrow that fills no slots: a tick does so with the jobs that have gone on since.
function hooks.leave_to_tick()
    key_state.cache().is_renewed_later = false
    admission.reevaluate_all(false, true)
    for id, name in pairs(key_state.cache().advanced) do
        local its_keys = key_state.keys_of(id)
        if key_steps.is_admitted_by(its_keys, id, string.match(name, "^(%S+) (%S+)$")) then
            local is_rate = string.find(its_keys[1].key, protocol.RATE_PREFIX, 1, true) == 1
            redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_keys[is_rate and #its_keys > 1 and 2 or 1].key)
        end
    end
end
