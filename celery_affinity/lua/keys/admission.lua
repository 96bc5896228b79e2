-- admission: decides which blocked jobs a key admits. While a key has capacity, it admits the first job of each of its
-- sub-lanes; otherwise it admits none. An admitted job advances to its next key or to its lane (`key_steps`).
-- A key can have thousands of sub-lanes. One invocation admits jobs in at most MAX_OPENED sub-lanes and revokes
-- admissions in at most twice as many; the next tick continues. An admitted job whose key has since lost its capacity
-- does not start: see `hooks.may_start`.
--
-- Cost: about ten commands, plus O(log n) per sub-lane whose admitted job changes (usually one or two).

-- Schedules a key for `reevaluate_all`.
function admission.reevaluate_soon(job_key)
    local keys = key_state.cache()
    keys.to_renew = keys.to_renew or {}
    keys.to_renew[job_key] = true
end

-- Returns a sort key for the age of the sub-lane's first job. All times have the same number of digits.
local function by_age(sublane)
    return sublane.enqueued .. " " .. sublane.first
end

-- Returns a sort key for the sub-lane's lane, most urgent first, then for age.
local function by_urgency(sublane)
    return 99 - lanes.number(sublane.lane) .. " " .. by_age(sublane)
end

-- Returns `sublanes`, sorted by the sort key that `text_of` computes.
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

-- Returns `max` of `sublanes`, alternating between the oldest and the most urgent, so that neither waits for a tick.
local function pick(sublanes, max)
    local some, is_in = {}, {}
    local oldest, most_urgent = sorted(sublanes, by_age), sorted(sublanes, by_urgency)
    for nth = 1, math.ceil(max / 2) do
        for _, sublane in ipairs({ oldest[nth], most_urgent[nth] }) do
            some[#some + 1] = not is_in[sublane] and sublane or nil
            is_in[sublane] = true
        end
    end
    return some
end

-- Lets the next tick continue with a key.
function admission.continue_later(job_key)
    key_state.cache().is_unfinished = true
    if redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, job_key) == 1 then
        workers.trigger_tick()
    end
end

-- Returns the sub-lanes in `changes` that this invocation can change; a tick changes the others.
--   changes: sub-lane -> the job to admit instead of the admitted one, "" to admit none.
local function within_budget(job_key, changes)
    local budget, opened, closed = key_state.budget(), {}, {}
    for sublane, job in pairs(changes) do
        local some = job == "" and closed or opened
        some[#some + 1] = sublane
    end
    local number = #opened + #closed
    if #opened > budget.to_open then
        opened = pick(opened, budget.to_open)
    end
    local changed = { unpack(closed, 1, math.min(#closed, budget.to_close)) }
    budget.to_open = math.max(0, budget.to_open - #opened)
    budget.to_close = budget.to_close - #changed
    for _, sublane in ipairs(opened) do
        changed[#changed + 1] = sublane
    end
    if #changed < number then
        admission.continue_later(job_key)
    end
    return changed
end

-- Cleans up after the last blocked job of a key: deletes the times of types. Deletes the limits too if no job holds the
-- key and none waits for it behind an earlier key.
local function forget(job_key, state)
    if state.waits then
        redis.call("ZREM", key.waiting_keys, job_key)
        redis.call("ZREM", key.due_keys, job_key)
        state.waits = false
    end
    for type in pairs(state.had) do -- a later job has waited for less long
        redis.call("HDEL", key.key_state(job_key), "@" .. type) -- a producer is not permitted to delete Redis keys
    end
    state.had = next(state.had) and {} or state.had
    if next(state.stated) and not state.retry and not state.are_some_coming and key_state.held(job_key, state) == 0 then
        for task in pairs(state.stated) do
            redis.call("HDEL", key.key_state(job_key), task)
        end
        state.stated = {}
    end
end

-- Lets a tick re-evaluate the key of a rate at `due_us`, when its next job can start; false if a job can start now.
local function schedule_recheck(job_key, due_us)
    if not due_us then
        redis.call("ZREM", key.due_keys, job_key)
    elseif due_us < (tonumber(redis.call("ZSCORE", key.due_keys, job_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, call.text(due_us), job_key)
        workers.tick_in_time(due_us - call.now_us, key.due_keys, job_key)
    end
end

-- Returns the admission changes of a key, as `within_budget` accepts them. Unbounded sub-lanes have no first and no
-- admitted job, so they never change.
local function admission_changes(job_key, state, room)
    local changes = {}
    for _, sublane in pairs(state.sublanes) do
        local job = key_turns.has_capacity_for_type(sublane.type, room, state) and sublane.first or ""
        if state.retry then
            job = room >= 0 and key_state.enqueued_of(job_key, sublane, state.retry) and state.retry or ""
        end
        changes[sublane] = job ~= sublane.standing and job or nil
    end
    return changes
end

-- Applies the admission changes that the budget of this invocation permits, and writes the heads of the changed types.
--   changes: as in `within_budget`.
--   fills, has_left: as in `reevaluate_all`.
local function apply_changes(job_key, changes, fills, has_left)
    local keys, before, after = key_state.cache(), {}, {} -- type -> heads
    for _, sublane in ipairs(next(changes) and within_budget(job_key, changes) or {}) do
        local type, job = sublane.type, changes[sublane]
        local is_in_lane
        before[type] = before[type] or lanes.heads_of(type)
        after[type], is_in_lane = key_steps.admit(job_key, sublane, job, after[type] or before[type])
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

-- Re-evaluates a key: admits the jobs that it has capacity for, and no others.
--   fills, has_left: as in `reevaluate_all`.
local function reevaluate(job_key, fills, has_left)
    local state = key_state.read(job_key)
    if state.turn then
        key_turns.end_turn_unused(job_key, state, fills)
    end
    if not next(state.sublanes) then
        return
    end
    local room, due_us = capacity.capacity_of(job_key, state)
    if not fills and due_us ~= nil and redis.call("ZSCORE", key.due_keys, job_key) then
        room, due_us = 0, nil -- a rate without capacity stays so until a tick re-evaluates it
    end
    if due_us ~= nil then
        schedule_recheck(job_key, due_us)
    end
    apply_changes(job_key, admission_changes(job_key, state, room), fills, has_left)
    minimums.renew(job_key, state)
    if next(state.unkept) then
        unbounded.block(job_key, state)
    end
    key_state.write_sublanes(job_key, state)
end

-- Re-evaluates the scheduled keys, then the keys that jobs advanced to or lost their admission for. The loop ends:
-- each sub-lane admits its oldest job, so each pass settles at least another job, in order of age.
--   fills: true if the caller fills free slots with jobs that enter their lanes (types are added to `call.to_fill`).
--   has_left: true if a job has left, which may have blocked jobs that fit free slots.
function admission.reevaluate_all(fills, has_left)
    local keys, renewed = key_state.cache(), {}
    keys.has_left, keys.called_back = has_left, false
    while keys.to_renew and not keys.is_renewed_later do
        local some = {}
        for job_key in pairs(keys.to_renew) do
            some[#some + 1] = job_key
            renewed[job_key] = true
        end
        table.sort(some)
        keys.to_renew = false
        for _, job_key in ipairs(some) do
            reevaluate(job_key, fills, has_left)
        end
        if not keys.to_renew then
            key_turns.end_all_unused(fills)
        end
    end
    keys.has_left_several = keys.has_left_several and keys.is_renewed_later
    for job_key in pairs(renewed) do
        local state = key_state.read(job_key)
        if not next(state.sublanes) then
            forget(job_key, state)
        end
    end
end

-- Announces that several jobs will leave. Their keys are re-evaluated once, after the last one has left. Otherwise a
-- key could admit a leaving job.
function hooks.many_leave()
    key_state.cache().is_renewed_later = true
end

-- Ends `many_leave` in a server function that fills no slots: a tick fills them with the jobs that have advanced.
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

-- key_steps: advances an admitted job to the sub-lane of its next key or to its lane, or revokes its admission. Jobs
-- with keys that are not in their lanes are blocked (key `kept_back`).
--
-- Cost: a few commands per job; O(log n).

-- Marks a waiting job outside its lane as blocked.
function key_steps.block(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Removes a job from the blocked jobs. Returns true if it was blocked.
--   is_not_last: true if other jobs of its lane are certainly blocked.
function key_steps.unblock(id, type, lane, is_not_last)
    local was_blocked = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if was_blocked and not is_not_last and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return was_blocked
end

-- Returns the list of the job's keys behind `job_key`, in the job's order; empty for a job with one key.
local function keys_after(job_key, id)
    local after, is_after = {}, false
    for _, stated in ipairs(id_suffix.has_many_keys(id) and key_state.keys_of(id) or {}) do
        after[#after + 1] = is_after and stated or nil
        is_after = is_after or stated.key == job_key
    end
    return after
end

-- Returns true if all `job_keys` admit job `id`.
function key_steps.is_admitted_by(job_keys, id, type, lane)
    for _, stated in ipairs(job_keys) do
        local sublane = key_state.read(stated.key).sublanes[type .. " " .. lane]
        if not sublane or not (sublane.is_unbounded or sublane.standing == id) then
            return false
        end
    end
    return true
end

-- Returns true if the admitted job of `sublane` is in its lane.
function key_steps.is_in_lane(job_key, sublane)
    local id = sublane.standing
    return sublane.is_unbounded
        or id ~= "" and key_steps.is_admitted_by(keys_after(job_key, id), id, sublane.type, sublane.lane)
end

-- Revokes the admission in `sublane`: removes the job from its lane and from the sub-lanes of its later keys.
--   heads: the heads of its type.
-- Returns the heads afterwards.
local function revoke(job_key, sublane, heads)
    local id, type, lane = sublane.standing, sublane.type, sublane.lane
    minimums.revoke_admission(job_key, sublane)
    for _, stated in ipairs(keys_after(job_key, id)) do
        local keys = key_state.cache()
        keys.called_back = keys.called_back or {}
        keys.called_back[id] = true
        key_state.remove(stated.key, key_state.read(stated.key), id, type, lane)
        admission.reevaluate_soon(stated.key)
    end
    hooks.leaves_lane(id, type, lane)
    heads = lanes.take_out(id, type, lane, heads)
    local enqueued = key_state.enqueued_of(job_key, sublane, id)
    if enqueued then
        key_steps.block(id, type, lane, enqueued)
    end
    return heads
end

-- Admits job `wanted` ("" for no job) in `sublane` instead of the present one, and advances it.
--   heads: the heads of its type.
-- Returns the heads afterwards, which the caller writes, and true if the job is now in its lane.
function key_steps.admit(job_key, sublane, wanted, heads)
    local type, lane = sublane.type, sublane.lane
    if sublane.standing ~= "" then
        heads = revoke(job_key, sublane, heads)
    end
    sublane.standing, sublane.is_changed = wanted, true
    if wanted == "" then
        return heads, false
    end
    local enqueued, next_key = key_state.enqueued_of(job_key, sublane, wanted), keys_after(job_key, wanted)[1]
    if next_key then
        local state, keys = key_state.read(next_key.key), key_state.cache()
        local belongs_into_lane = key_state.add(next_key.key, state, wanted, type, lane, enqueued)
        admission.reevaluate_soon(next_key.key)
        if keys.has_left and not (keys.called_back and keys.called_back[wanted]) then
            keys.advanced[wanted] = type .. " " .. lane
        end
        if not belongs_into_lane then
            return heads, false
        end
    end
    key_steps.unblock(wanted, type, lane, sublane.has_more)
    hooks.enters_lane(wanted, type, lane, enqueued)
    return lanes.insert(wanted, type, lane, enqueued, heads), true
end
