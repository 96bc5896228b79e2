-- gate: jobs that have keys. A key has a limit: at most so many of its jobs hold it, each from its claim until its
-- release; or a rate: at most so many start in a period. All others wait. A job may have a rate, an exclusive key
-- and the key of its tenant, and passes these in the order of its rules: the key that fewer jobs share comes first, so
-- a job that waits there holds up no others; the tenant is last.
-- A lane has the pending jobs of one type, mode and priority; a claim takes its first job. What waits for a key is in
-- sub-lanes, one for each key and lane, in the order of the lane. While the key has room, the first job of each of its
-- sub-lanes stands for it: it goes on to the sub-lane of its next key, or to its lane. All others are kept back. So
-- claims meet only jobs that may start. To renew a key is to find out again which jobs stand (`key_standing`). A tenant
-- that nothing bounds keeps no job back (`unbounded`).
-- What a key holds is a copy of claims: a claim that is removed, after a crash as well, frees it.
-- Below, `its_key` is the name of a key, `its` what Redis says of it (`key_state.read`), and `stated` what a job says of
-- it (`rules_codec.keys`).
-- Cost: that of `admission.reevaluate_all`, and a few commands.

-- Reads a key again, since the call has changed its rows, settings or pause without `key_rows`, and has it renewed.
local function read_again(its_key)
    key_state.cache().known[its_key] = nil
    key_state.read(its_key).waits = true
    admission.reevaluate_soon(its_key)
end

-- Reads a key again, and renews it.
function gate.reevaluate(its_key)
    read_again(its_key)
    admission.reevaluate_all(true)
end

-- RETURNS how often the limits of keys have changed: the score in `waiting_keys` of a key that was renewed since.
function gate.revision()
    return redis.call("HGET", key.settings, "limits_revision") or "0"
end

-- Writes the limit or rate that job `id` states of a key into the hash of the key, by the job's task. `is_fresh`:
-- whether the job was published just now: then its limit counts instead of that of older jobs of the task. The caller
-- calls `admission.reevaluate_all`.
local function note(stated, id, is_fresh)
    local its_key, its, task = stated.key, key_state.read(stated.key), "=" .. key_state.cache().jobs[id].task
    if its.stated[task] ~= stated.states and (is_fresh or not its.stated[task]) then
        redis.call("HSET", key.of_key(its_key), task, stated.states)
        its.stated[task] = stated.states
        admission.reevaluate_soon(its_key)
    end
end

-- Adds a job to those that wait for its keys. `fresh`: the job, if it was published just now; else nil. `heads`: the
-- heads of its type, if they are known.
function gate.enter(id, type, lane, enqueued, fresh, heads)
    if fresh then
        key_state.put(id, fresh.rules, fresh.task_name)
    end
    local its_keys = key_state.keys_of(id)
    if not its_keys[1] then
        hooks.enters_lane(id, type, lane, enqueued)
        lanes.add(id, type, lane, enqueued)
        call.to_fill[type] = true
        return
    elseif unbounded.enter(id, type, lane, enqueued, heads) then
        return
    end
    fair_share.admit(id, fresh)
    for nth, stated in ipairs(its_keys) do
        if key_state.is_stated(stated) then
            note(stated, id, fresh)
            if nth > 1 then
                key_state.expect(stated.key, key_state.read(stated.key), id, enqueued)
            end
        end
    end
    local first = its_keys[1].key
    if key_state.add(first, key_state.read(first), id, type, lane, enqueued) then
        hooks.enters_lane(id, type, lane, enqueued)
        lanes.add(id, type, lane, enqueued, heads)
        call.to_fill[type] = true
    end
    admission.reevaluate_soon(first)
    admission.reevaluate_all(true)
    if not key_steps.is_admitted_by(its_keys, id, type, lane) then
        key_steps.block(id, type, lane, enqueued)
    end
end

-- Removes job `id` from what waits for one of its keys, `stated`; `is_later`: not the first. A key that was kept for
-- the job is so no more. The caller calls `admission.reevaluate_all`.
local function wait_no_more(stated, its, is_later, id, type, lane)
    key_state.remove(stated.key, its, id, type, lane)
    if is_later and key_state.is_stated(stated) then
        key_state.expect_no_more(stated.key, its, id)
    end
    if its.retry == id then
        key_state.keep_for_nobody(stated.key, its, "retry")
        its.waits = true
    end
    admission.reevaluate_soon(stated.key)
end

-- Removes job `id`, which ends or moves, from what waits for its keys.
function gate.leave(id, type, lane)
    if not key_steps.unblock(id, type, lane) then
        lanes.remove(id, type, lane)
    end
    for nth, stated in ipairs(key_state.keys_of(id)) do
        key_state.cache().has_left_several = key_state.cache().has_left_several or nth > 1
        wait_no_more(stated, key_state.read(stated.key), nth > 1, id, type, lane)
    end
    admission.reevaluate_all(false, true)
end

-- RETURNS whether a key has room for job `id`, which is in its lane.
local function has_room_for(id, its_key, its)
    local room, due_us = capacity.capacity_of(its_key, its)
    if due_us then
        -- The rate has no room by now. The job stands since a renewal found room: that counts, unless the key was not
        -- renewed since limits changed, or is noted for a tick.
        return redis.call("ZSCORE", key.waiting_keys, its_key) == gate.revision()
            and not redis.call("ZSCORE", key.due_keys, its_key)
    elseif due_us == false then
        return true
    elseif its.retry then
        return its.retry == id and room >= 0
    end
    return key_turns.has_capacity_for_type(its.turn and redis.call("HGET", key.job(id), "type"), room, its)
end

-- A key has no room for job `id`, which is in its lane: the job is kept back from now on.
local function send_back(id, its_key)
    local type, lane, enqueued, rank = unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "rank"))
    local sublane = type and lane and key_state.read(its_key).sublanes[type .. " " .. lane]
    if sublane and sublane.standing == id then -- at first: `renew_all` may leave this sub-lane to a tick
        lanes.write(type, (key_steps.admit(its_key, sublane, "", lanes.heads_of(type))))
    end
    admission.reevaluate_soon(its_key)
    admission.reevaluate_all(false)
    if type and lane and redis.call("ZSCORE", key.lane(type, lane), id) then -- somebody deleted that it stands there
        lanes.remove(id, type, lane)
        key_steps.block(id, type, lane, lanes.order(enqueued, rank) or call.now)
    end
end

-- RETURNS whether job `id`, which is in its lane, may start: not if one of its keys has no room for it, since a limit
-- was lowered just now or a tick is to go on with the key.
function hooks.may_start(id, type, lane)
    if fast_path.passes(id, type, lane) then
        return true
    end
    for _, stated in ipairs(key_state.keys_of(id)) do
        local its = key_state.read(stated.key)
        local sublane = its.sublanes[type .. " " .. lane]
        if not (sublane and sublane.is_unbounded or has_room_for(id, stated.key, its)) then
            send_back(id, stated.key)
            return false
        end
    end
    return true
end

-- RETURNS whether job `id`, which has a key, may wait in a worker for one of its slots (`lookahead`). Only a job whose
-- single key is that of its tenant may; and not while tenants go by shares, since the time in the worker would be
-- charged as slot-time; nor while a tick is to go on with the key at once, since a job that the tick lets stand may fit
-- a slot that is free.
function hooks.may_be_ahead(id)
    if not id_suffix.has_only_tenant(id) then
        return false
    end
    local stated = key_state.keys_of(id)[1] -- nil of a job whose rules nobody could read
    local due_us = stated and redis.call("ZSCORE", key.due_keys, stated.key)
    return not tenants.shares() and tonumber(due_us or nil) ~= protocol.AT_ONCE_US
end

-- Job `id`, which was popped from its lane, was claimed: it holds its key, and counts as a start of its rate.
-- `is_out_of_turn`: whether it went whosever turn it was.
function hooks.hold(id, type, lane, fence, is_out_of_turn)
    if fast_path.hold(id, type, lane, fence, is_out_of_turn) then
        return
    end
    for nth, stated in ipairs(key_state.keys_of(id)) do
        local its_key, its = stated.key, key_state.read(stated.key)
        wait_no_more(stated, its, nth > 1, id, type, lane)
        local most, period_us, interval_us = capacity.rate_of(its_key, its.stated)
        if most then
            local free_us = math.max(capacity.free_at(its_key, period_us), call.now_us)
            redis.call("ZADD", key.rates, call.text(free_us + interval_us), its_key)
        else
            key_state.hold(stated, id, fence)
            if stated.tenant then
                fair_share.charge(its_key, id, type, not is_out_of_turn)
            end
            key_turns.end_turn(its_key, its, type)
        end
    end
    admission.reevaluate_all(false)
end

-- RETURNS the retry of job `id`: another job of the same task and key, which waits; its type; and whether it is
-- pending, not scheduled. Nil if there is none, or if a pause or limit holds back its type.
local function retry_of(id, its_key)
    local task = redis.call("HGET", key.job(id), "task") or ""
    for _, other in ipairs((job_index.jobs_of_task(task, 0, protocol.MOST_MOVES))) do
        local state, type = unpack(redis.call("HMGET", key.job(other), "state", "type"))
        local waits = other ~= id and (state == "pending" or state == "scheduled")
        if waits and type and key_state.has(other, its_key) and key_turns.is_open(type) then
            return other, type, state == "pending"
        end
    end
end

-- Frees one of the keys of job `id`. RETURNS whether other jobs may start because of that.
local function hold_no_more(stated, id)
    local its_key = stated.key
    if stated.is_preemptible then
        evictions.free(id, its_key)
    end
    if redis.call("ZREM", key.held(its_key), id) == 0 then
        return false
    end
    local known = call.keys and call.keys.known[its_key] or nil
    if known and known.held then
        known.held = known.held - 1
    end
    if stated.tenant then
        fair_share.correct(its_key, id)
        return not fast_path.has_capacity(stated.tenant, its_key, known)
    end
    return true
end

-- A job of `type` has freed the key in `stated`: keeps the key for the job's retry, or for the type whose turn it is.
local function pass_on(stated, id, type)
    local its_key = stated.key
    local its, retry, its_type, is_pending = key_state.read(its_key), nil, nil, nil
    if stated.keeps_order then
        retry, its_type, is_pending = retry_of(id, its_key)
    end
    if retry then
        -- It may stand already: then `renew_all` changes nothing.
        call.to_fill[its_type] = is_pending or call.to_fill[its_type]
        redis.call("HSET", key.of_key(its_key), "retry", retry)
        its.retry = retry
    elseif not its.turn and not its.retry then
        key_turns.give_turn(its_key, its, type)
    end
    admission.reevaluate_soon(its_key)
end

-- Frees the keys of job `id` of `type`, whose claim was removed. With `keep_order` a key is kept for the job's retry.
-- `rules`, `name`: what the job's row says.
function gate.free(id, type, rules, name)
    local has_room = false
    for _, stated in ipairs(rules_codec.keys(rules or nil)) do
        if hold_no_more(stated, id) then
            if not has_room then
                key_state.put(id, rules or nil, name)
            end
            has_room = true
            pass_on(stated, id, type)
        end
    end
    if has_room then
        admission.reevaluate_all(true)
    end
end

-- Called when job `id` of `type` starts a pause after its claim was removed. A key with `keep_order` stays reserved for
-- the job, as for a retry.
function gate.keep_for(id, type)
    for _, stated in ipairs(key_state.keys_of(id)) do
        local its = stated.keeps_order and key_state.read(stated.key)
        if its and not its.retry and key_turns.is_open(type) then
            redis.call("HSET", key.of_key(stated.key), "retry", id)
            its.retry = id
            admission.reevaluate_soon(stated.key)
        end
    end
    admission.reevaluate_all(true)
end

-- Renews the keys whose limits have changed, and those that a tick is to look at by now: MOST_KEYS of each kind.
-- RETURNS whether there may be more.
function hooks.recheck()
    if redis.call("EXISTS", key.waiting_keys, key.rates, key.tags) == 0 then
        return false
    end
    local has_more_tags = fair_share.tick()
    local now = gate.revision()
    local stale = redis.call("ZRANGEBYSCORE", key.waiting_keys, "-inf", "(" .. now, "LIMIT", 0, protocol.MOST_KEYS)
    local due = redis.call("ZRANGEBYSCORE", key.due_keys, "-inf", call.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(due) do
        redis.call("ZREM", key.due_keys, its_key)
    end
    for _, its_key in ipairs(stale) do
        redis.call("ZADD", key.waiting_keys, now, its_key)
        read_again(its_key)
    end
    for _, its_key in ipairs(due) do
        -- The arrow that made the key due may have renewed it without filling slots. And a publish fills none for a job
        -- if others of its type wait, even if these stand for a key that has no room: so this tick fills the types.
        for _, sublane in pairs(key_state.read(its_key).sublanes) do
            call.to_fill[sublane.type] = call.to_fill[sublane.type] or key_steps.is_in_lane(its_key, sublane)
        end
        read_again(its_key)
    end
    admission.reevaluate_all(true) -- together: then their order makes no difference
    local free = redis.call("ZRANGEBYSCORE", key.rates, "-inf", call.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(free) do -- all jobs of these rates may start at once again
        redis.call("ZREM", key.rates, its_key)
    end
    return key_state.cache().is_unfinished or has_more_tags or math.max(#stale, #due, #free) == protocol.MOST_KEYS
end
