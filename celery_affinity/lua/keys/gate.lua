-- gate: queues, claims and releases jobs that have keys. A key has a limit or a rate. A limit is the maximum number of
-- jobs that hold the key from claim to release; a rate is the maximum number of starts in a period. All other jobs of
-- the key wait. A job can have a rate, an exclusive key and its tenant's key, and passes them in the order of its
-- rules. The key that fewer jobs share comes first, so a job that waits for it delays no others; the tenant comes last.
-- A lane has the pending jobs of one type, mode and priority; a claim takes its first job. Jobs that wait for a key are
-- in sub-lanes, one per key and lane, in the order of the lane. While the key has capacity, it admits the first job of
-- each sub-lane. The job then advances to the sub-lane of its next key, or to its lane. All others are blocked, so
-- claims meet only jobs that can start. Re-evaluating a key means recomputing its admitted jobs (`admission`). A tenant
-- without effective limits blocks no jobs (`unbounded`).
-- The holders of a key are a copy of the claims: removing a claim, even after a crash, frees its keys.
-- Names: `job_key` is a key's name, `state` its state in Redis (`key_state.read`), and `stated` the key as a job
-- specifies it (`rules_codec.keys`).
--
-- Cost: the cost of `admission.reevaluate_all`, plus a few commands.

-- Reads a key again and schedules its re-evaluation, after the invocation changed its fields, settings or pause without
-- `key_state`.
local function reread(job_key)
    key_state.cache().known[job_key] = nil
    key_state.read(job_key).waits = true
    admission.reevaluate_soon(job_key)
end

-- Reads a key again and re-evaluates it.
function gate.reevaluate(job_key)
    reread(job_key)
    admission.reevaluate_all(true)
end

-- Returns the revision of the limits of keys: the score in `waiting_keys` of each key re-evaluated since.
function gate.revision()
    return redis.call("HGET", key.settings, "limits_revision") or "0"
end

-- Writes the limit or rate that job `id` specifies to the key's hash, under the job's task. The caller calls
-- `admission.reevaluate_all`.
--   is_fresh: true if the job was just published; its limit then replaces the limit of older jobs of the task.
local function record_limit(stated, id, is_fresh)
    local job_key, state, task = stated.key, key_state.read(stated.key), "=" .. key_state.cache().jobs[id].task
    if state.stated[task] ~= stated.states and (is_fresh or not state.stated[task]) then
        redis.call("HSET", key.key_state(job_key), task, stated.states)
        state.stated[task] = stated.states
        admission.reevaluate_soon(job_key)
    end
end

-- Enqueues a job that has keys.
--   fresh: the job if it was just published, or nil.
--   heads: the heads of its type, or nil if the caller has not read them.
function gate.enter(id, type, lane, enqueued, fresh, heads)
    if fresh then
        key_state.put(id, fresh.rules, fresh.task_name)
    end
    local job_keys = key_state.keys_of(id)
    if not job_keys[1] then
        lanes.add(id, type, lane, enqueued)
        hooks.enters_lane(id, type, lane, enqueued)
        call.to_fill[type] = true
        return
    elseif unbounded.enter(id, type, lane, enqueued, heads) then
        return
    end
    for nth, stated in ipairs(job_keys) do
        if key_state.is_stated(stated) then
            record_limit(stated, id, fresh)
            if nth > 1 then
                key_state.expect(stated.key, key_state.read(stated.key), id, enqueued)
            end
        end
    end
    local first = job_keys[1].key
    if key_state.add(first, key_state.read(first), id, type, lane, enqueued) then
        lanes.add(id, type, lane, enqueued, heads)
        hooks.enters_lane(id, type, lane, enqueued)
        call.to_fill[type] = true
    end
    admission.reevaluate_soon(first)
    admission.reevaluate_all(true)
    if not key_steps.is_admitted_by(job_keys, id, type, lane) then
        key_steps.block(id, type, lane, enqueued)
    end
end

-- Removes waiting job `id` from its key `stated`. A reservation of the key for the job ends. The caller calls
-- `admission.reevaluate_all`.
--   is_later: true if the key is not the job's first one.
local function stop_waiting(stated, state, is_later, id, type, lane)
    key_state.remove(stated.key, state, id, type, lane)
    if is_later and key_state.is_stated(stated) then
        key_state.stop_expecting(stated.key, state, id)
    end
    if state.retry == id then
        key_state.end_reservation(stated.key, state, "retry")
        state.waits = true
    end
    admission.reevaluate_soon(stated.key)
end

-- Removes an ending or moving job `id` from the sub-lanes of its keys.
function gate.leave(id, type, lane)
    if not key_steps.unblock(id, type, lane) then
        lanes.remove(id, type, lane)
    end
    for nth, stated in ipairs(key_state.keys_of(id)) do
        key_state.cache().has_left_several = key_state.cache().has_left_several or nth > 1
        stop_waiting(stated, key_state.read(stated.key), nth > 1, id, type, lane)
    end
    admission.reevaluate_all(false, true)
end

-- Returns true if a key has capacity for the admitted job `id`.
local function has_capacity_for(id, job_key, state)
    local free, due_us = capacity.capacity_of(job_key, state)
    if due_us then
        -- The rate has no capacity now, but had it when a re-evaluation admitted the job. That suffices, unless limits
        -- changed after the re-evaluation, or a tick must re-evaluate the key.
        return redis.call("ZSCORE", key.waiting_keys, job_key) == gate.revision()
            and not redis.call("ZSCORE", key.due_keys, job_key)
    elseif due_us == false then
        return true
    elseif state.retry then
        return state.retry == id and free >= 0
    end
    return key_turns.has_capacity_for_type(state.turn and redis.call("HGET", key.job(id), "type"), free, state)
end

-- Blocks the admitted job `id`, for which a key has no capacity.
local function block_again(id, job_key)
    local type, lane, enqueued, rank, head =
        unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "rank", "head"))
    local sublane = type and lane and key_state.read(job_key).sublanes[type .. " " .. lane]
    if sublane and sublane.standing == id then -- first: `reevaluate_all` can leave this sub-lane to a tick
        lanes.write(type, (key_steps.admit(job_key, sublane, "", lanes.heads_of(type))))
    end
    admission.reevaluate_soon(job_key)
    admission.reevaluate_all(false)
    if type and lane and redis.call("ZSCORE", key.lane(type, lane), id) then -- another client deleted its admission
        lanes.remove(id, type, lane)
        key_steps.block(id, type, lane, lanes.order(enqueued, rank, head) or call.now)
    end
end

-- Returns true if the admitted job `id` can start. Otherwise blocks the job: one of its keys has no capacity, since a
-- limit was just lowered or a tick must continue with the key.
function hooks.may_start(id, type, lane)
    if fast_path.passes(id, type, lane) then
        return true
    end
    for _, stated in ipairs(key_state.keys_of(id)) do
        local state = key_state.read(stated.key)
        local sublane = state.sublanes[type .. " " .. lane]
        if not (sublane and sublane.is_unbounded or has_capacity_for(id, stated.key, state)) then
            block_again(id, stated.key)
            return false
        end
    end
    return true
end

-- Returns true if a worker can prefetch job `id` with keys (`prefetch`). The tenant's key must be its only key.
-- It is not prefetched while the next tick must continue with the key, since a job that the tick admits may fit a free
-- slot.
function hooks.may_be_ahead(id)
    if not id_suffix.has_only_tenant(id) then
        return false
    end
    local stated = key_state.keys_of(id)[1] -- nil if the job's rules are unreadable
    local due_us = stated and redis.call("ZSCORE", key.due_keys, stated.key)
    return tonumber(due_us or nil) ~= protocol.AT_ONCE_US
end

-- Lets the claimed job `id`, already removed from its lane, hold its keys, and counts it as a start of its rate.
function hooks.hold(id, type, lane, fence)
    if fast_path.hold(id, type, lane, fence) then
        return
    end
    for nth, stated in ipairs(key_state.keys_of(id)) do
        local job_key, state = stated.key, key_state.read(stated.key)
        stop_waiting(stated, state, nth > 1, id, type, lane)
        local burst, period_us, interval_us = capacity.rate_of(job_key, state.stated)
        if burst then
            local free_us = math.max(capacity.free_at(job_key, period_us), call.now_us)
            redis.call("ZADD", key.rates, call.text(free_us + interval_us), job_key)
        else
            key_state.hold(stated, id, fence)
            key_turns.end_turn(job_key, state, type)
        end
    end
    admission.reevaluate_all(false)
end

-- Returns the retry of job `id`, which is another waiting job of the same task and key. Also returns its type, and true
-- if it is pending, false if it is scheduled. Returns nil if there is no retry, or if a pause or limit blocks its type.
local function retry_of(id, job_key)
    local task = redis.call("HGET", key.job(id), "task") or ""
    for _, other in ipairs((job_index.jobs_of_task(task, 0, protocol.MAX_MOVES))) do
        local state, type = unpack(redis.call("HMGET", key.job(other), "state", "type"))
        local waits = other ~= id and (state == "pending" or state == "scheduled")
        if waits and type and key_state.has(other, job_key) and key_turns.is_open(type) then
            return other, type, state == "pending"
        end
    end
end

-- Releases one key of job `id`. Returns true if that can let other jobs start.
local function release_key(stated, id)
    local job_key = stated.key
    if stated.is_preemptible then
        evictions.free(id, job_key)
    end
    if redis.call("ZREM", key.held(job_key), id) == 0 then
        return false
    end
    local known = call.keys and call.keys.known[job_key] or nil
    if known and known.held then
        known.held = known.held - 1
    end
    if stated.tenant then
        return not fast_path.has_capacity(stated.tenant, job_key, known)
    end
    return true
end

-- Reserves the key `stated`, which a job of `type` has released, for the job's retry or for the type that has the turn.
local function reserve_key(stated, id, type)
    local job_key = stated.key
    local state, retry, retry_type, is_pending = key_state.read(job_key), nil, nil, nil
    if stated.keeps_order then
        retry, retry_type, is_pending = retry_of(id, job_key)
    end
    if retry then
        -- If the retry is already admitted, `reevaluate_all` changes nothing.
        call.to_fill[retry_type] = is_pending or call.to_fill[retry_type]
        redis.call("HSET", key.key_state(job_key), "retry", retry)
        state.retry = retry
    elseif not state.turn and not state.retry then
        key_turns.give_turn(job_key, state, type)
    end
    admission.reevaluate_soon(job_key)
end

-- Releases the keys of job `id` of `type`, whose claim was removed. A key with `keep_order` is reserved for the job's
-- retry.
--   rules, name: fields of the job hash.
function gate.free(id, type, rules, name)
    local is_freed = false
    for _, stated in ipairs(rules_codec.keys(rules or nil)) do
        if release_key(stated, id) then
            if not is_freed then
                key_state.put(id, rules or nil, name)
            end
            is_freed = true
            reserve_key(stated, id, type)
        end
    end
    if is_freed then
        admission.reevaluate_all(true)
    end
end

-- Reserves the keys with `keep_order` for job `id` of `type`, as for a retry. Called when the job starts a pause after
-- its claim was removed.
function gate.reserve_keys(id, type)
    for _, stated in ipairs(key_state.keys_of(id)) do
        local state = stated.keeps_order and key_state.read(stated.key)
        if state and not state.retry and key_turns.is_open(type) then
            redis.call("HSET", key.key_state(stated.key), "retry", id)
            state.retry = id
            admission.reevaluate_soon(stated.key)
        end
    end
    admission.reevaluate_all(true)
end

-- Re-evaluates the keys whose limits have changed and the keys due for a tick, at most MAX_KEYS of each. Returns true
-- if there can be more.
function hooks.recheck()
    if redis.call("EXISTS", key.waiting_keys, key.rates, key.unlisted) == 0 then
        return false
    end
    local has_more_to_list = fair_share.list_some()
    local revision = gate.revision()
    local stale = redis.call("ZRANGEBYSCORE", key.waiting_keys, "-inf", "(" .. revision, "LIMIT", 0, protocol.MAX_KEYS)
    local due = redis.call("ZRANGEBYSCORE", key.due_keys, "-inf", call.now, "LIMIT", 0, protocol.MAX_KEYS)
    for _, job_key in ipairs(due) do
        redis.call("ZREM", key.due_keys, job_key)
    end
    for _, job_key in ipairs(stale) do
        redis.call("ZADD", key.waiting_keys, revision, job_key)
        reread(job_key)
    end
    for _, job_key in ipairs(due) do
        -- The server function that made the key due may have re-evaluated it without filling slots. A publish does not
        -- fill slots for a job if others of its type wait, even for a key without capacity. So this tick fills them.
        for _, sublane in pairs(key_state.read(job_key).sublanes) do
            call.to_fill[sublane.type] = call.to_fill[sublane.type] or key_steps.is_in_lane(job_key, sublane)
        end
        reread(job_key)
    end
    admission.reevaluate_all(true) -- together: the order of the keys then does not matter
    local free = redis.call("ZRANGEBYSCORE", key.rates, "-inf", call.now, "LIMIT", 0, protocol.MAX_KEYS)
    for _, job_key in ipairs(free) do -- these rates can again start a full burst
        redis.call("ZREM", key.rates, job_key)
    end
    return key_state.cache().is_unfinished or has_more_to_list or math.max(#stale, #due, #free) == protocol.MAX_KEYS
end
