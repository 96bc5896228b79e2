-- admin: server functions for operators.

-- move: changes the type, mode or priority of waiting jobs for an operator. The jobs keep their enqueue times. The
-- worker that claims a job receives the change with it (`claims.payload`), so that a retry keeps the change.
--
-- Returns {unfilled, served, found, calls, ...}, with found and calls for each job.
--   unfilled: see `fill`.
--   served: 0 if no live worker serves the new type.
--   found: state of the job, or of the batch that it was merged into. A pending or scheduled job has been moved. "" for
--     an unknown job.
--   calls: number of calls in the batch; 1 for a job.
-- Cost: O(log n) per job, at most MAX_MOVES jobs per invocation, limited by the caller, plus the cost of `fill`.

function functions.move(ARGV)
    local new_type = ARGV[1] -- encoded; "" keeps the type
    local new_mode = ARGV[2] -- "queued" or "demand"; "" keeps the mode
    local new_priority = ARGV[3] -- 0 to 10; "" keeps the priority
    -- ARGV[4..]: job ids

    -- Returns the new lane of a job from `lane`.
    local function new_lane_for(lane)
        local mode, priority = string.match(lane, "^(%l+)%.(%d+)$")
        return lanes.name(new_mode ~= "" and new_mode or mode, new_priority ~= "" and new_priority or priority)
    end

    -- Moves job `id` if it waits. Returns its state, and the type if the job is pending.
    local function move(id)
        local state, type, lane, enqueued, deliveries, patient, rules, name, rank, head = unpack(redis.call("HMGET",
            key.job(id), "state", "type", "lane", "enqueued", "deliveries", "patient", "rules", "name", "rank", "head"))
        if state ~= "pending" and state ~= "scheduled" then
            return state
        elseif not (corrupt.is_word(id) and corrupt.can_wait(type, lane, enqueued, deliveries)) then
            return nil
        end
        local its_type, its_lane = new_type ~= "" and new_type or type, new_lane_for(lane)
        if its_type == type and its_lane == lane then
            return state
        end
        if state == "pending" then
            hooks.leave(id, type, lane)
        end
        redis.call("HSET", key.job(id), "type", its_type, "lane", its_lane, "moved", 1)
        redis.call("HSETNX", key.job(id), "claimed", "") -- see `claims.grant`
        if state == "pending" then
            hooks.wait(id, its_type, its_lane, lanes.order(enqueued, rank, head))
        end
        local row = { state = state, type = type, rules = rules, name = name, patient = patient }
        hooks.of(id).is_moved(id, row, its_type, its_lane)
        return state, state == "pending" and its_type or nil
    end

    local types, found = {}, {}
    for i = 4, #ARGV do
        local state, into = unpack(redis.call("HMGET", key.job(ARGV[i]), "state", "into"))
        local id = state == "merged" and hooks.of(ARGV[i]).representative(ARGV[i], into) or ARGV[i]
        local run_state, type = move(id)
        types[#types + 1] = type
        found[#found + 1] = run_state or ""
        found[#found + 1] = hooks.of(id).number_of_calls(id)
    end
    local is_served = new_type == "" or redis.call("HEXISTS", key.capacity, new_type) == 1
        or redis.call("HEXISTS", key.capacity, protocol.WITHDRAWN .. new_type) == 1
    local unfilled = fill.anywhere(types)
    return { unfilled, is_served and 1 or 0, unpack(found) }
end

-- purge: deletes waiting jobs of a type for an operator: pending jobs, and the given scheduled jobs.
--
-- Returns {deleted, again}. again: 1 if more jobs are pending and the caller must invoke the function again.
-- Cost: at most MAX_PURGED jobs of each kind per invocation. A job with a key, or a call of a batch, counts as several
-- jobs. Each recurring call that a job postponed adds 1.

-- Deletes a job that has been removed from its lane. A job with a key may be blocked, waiting for `lane`.
local function forget(id, type, lane)
    if lane then
        hooks.leave_gate(id, type, lane)
    end
    hooks.of(id).is_purged(id, type)
end

-- Deletes jobs of `type`, including the scheduled jobs in `arguments`, from the second argument. Returns the reply.
local function delete_some(type, arguments)
    local deleted, counted = 0, 0 -- number of jobs; counted cost of the jobs from lanes
    local do_some_recur = redis.call("EXISTS", key.recurring_matches) == 1

    -- Returns the first jobs of a sorted set, within the remaining budget of this invocation.
    local function some_of(place)
        local ids = {}
        for _, id in ipairs(redis.call("ZRANGE", place, 0, protocol.MAX_PURGED - counted - 1)) do
            if counted >= protocol.MAX_PURGED then
                break
            end
            ids[#ids + 1] = id
            local own_cost = id_suffix.has_key(id) and protocol.KEYED_COUNTS_AS or 1
            counted = counted + own_cost + hooks.of(id).counts_as(id, type, do_some_recur)
        end
        deleted = deleted + #ids
        return ids
    end

    for i = 2, #arguments do
        local state, its_type, lane = unpack(redis.call("HMGET", key.job(arguments[i]), "state", "type", "lane"))
        if state == "scheduled" and its_type == type then
            redis.call("ZREM", key.scheduled, arguments[i])
            forget(arguments[i], type, lane)
            deleted = deleted + 1
        end
    end
    for _, lane in ipairs(lanes.NAMES) do
        for _, id in ipairs(some_of(key.kept_back(type, lane))) do
            forget(id, type, lane)
        end
        if counted >= protocol.MAX_PURGED then
            return { deleted, 1 } -- the code below would delete jobs that keys have just admitted
        end
    end
    local heads = lanes.heads_of(type)
    for lane, enqueued, first_id in lanes.each(heads) do
        if counted >= protocol.MAX_PURGED then
            break
        end
        local ids = some_of(key.lane(type, lane))
        redis.call("ZREMRANGEBYRANK", key.lane(type, lane), 0, #ids - 1)
        local first = string.find(heads, lane .. " " .. enqueued .. " " .. first_id, 1, true)
        heads = lanes.with_new_head(type, lane, heads, first, first + #lane + #enqueued + #first_id + 1)
        lanes.write(type, heads)
        for _, id in ipairs(ids) do
            hooks.leaves_lane(id, type, lane)
            forget(id, type, lane)
        end
    end
    return { deleted, counted >= protocol.MAX_PURGED and heads ~= "" and 1 or 0 }
end

function functions.purge(ARGV)
    local type = ARGV[1] -- encoded
    -- ARGV[2..]: ids of scheduled jobs, at most MAX_PURGED

    hooks.many_leave()
    local reply = delete_some(type, ARGV)
    hooks.leave_to_tick()
    return reply
end

-- replay: dead -> pending, for an operator. The jobs are queued as if they were published now, with no deliveries.
-- Stamps and expiry are removed, because they would end the jobs. A job without a message stays dead.
--
-- Returns {unfilled, left, replayed id, ...}. unfilled: see `fill`. left: number of ids, the last ones, that the caller
-- must pass to the next invocation.
-- Cost: at most MAX_MOVES jobs per invocation, limited by the caller, and MAX_SHARED calls of batches.
function functions.replay(ARGV)
    -- ARGV[1..]: job ids
    local types, replayed = {}, {}
    local calls_remaining, remaining = protocol.MAX_SHARED, 0
    for nth, id in ipairs(ARGV) do
        local state, type, lane, stamps, expires, reason, name, due = unpack(redis.call("HMGET", key.job(id),
            "state", "type", "lane", "stamps", "expires", "reason", "name", "due"))
        local rule = hooks.of(id)
        local is_ready = state == "dead" and reason ~= "deleted" and corrupt.is_word(id)
            and corrupt.can_wait(type, lane, call.now, "0")
        if is_ready then
            local is_finished, number = rule.wait_again(id, calls_remaining)
            calls_remaining = calls_remaining - number
            if not is_finished then
                remaining = #ARGV - nth + 1
                break
            end
        end
        if is_ready and (rule.STANDS_FOR_CALLS or redis.call("EXISTS", key.message(id)) == 1) then
            redis.call("ZREM", key.dead, id)
            redis.call("ZREM", key.unreported, id)
            job_index.fade(id, stamps, expires)
            redis.call("HDEL", key.job(id), "reason", "why", "ended", "acked", "left", "tries", "expires",
                "stamps", "deliveries", "requeues", "pauses", "rank")
            redis.call("HSET", key.job(id), "state", "pending", "enqueued", call.now)
            local head = nil
            if due or due_times.may_stretch() then
                head, due = due_times.renew(id, type, name, due, call.now_us)
                due_times.add(id, due)
            end
            hooks.wait(id, type, lane, lanes.order(call.now, nil, head))
            types[#types + 1] = type
            replayed[#replayed + 1] = id
        end
    end
    return { fill.anywhere(types), remaining, unpack(replayed) }
end

-- drop: deletes dead letters for an operator.
--
-- Returns the number of deleted jobs. A job that is not a dead letter is kept. A batch with unreported calls is removed
-- from the dead letters, and is deleted after its last report.
-- Cost: at most MAX_MOVES jobs per invocation, limited by the caller, and MAX_FORGOTTEN calls per batch.
function functions.drop(ARGV)
    -- ARGV[1..]: job ids
    local dropped, is_seen = 0, {}
    for _, id in ipairs(ARGV) do
        local state, reason = unpack(redis.call("HMGET", key.job(id), "state", "reason"))
        local is_dead = state == "dead" and reason ~= "deleted" and not is_seen[id]
        is_seen[id] = true
        if is_dead and hooks.of(id).STANDS_FOR_CALLS and redis.call("ZSCORE", key.unreported, id) then
            redis.call("ZREM", key.dead, id) -- `ack_report` deletes it
            dropped = dropped + 1
        elseif is_dead or (not state and redis.call("ZSCORE", key.dead, id)) then -- another client deleted its hash
            requeue.delete(id)
            dropped = dropped + 1
        end
    end
    return dropped
end

-- revoke: pending or scheduled -> unreported. Waiting jobs end immediately, without a slot. Jobs published later under
-- these task ids end, too. The worker stops a claimed job; if the job is requeued instead, it ends then.
--
-- Returns {revoked, left, after, {other, ...}}.
--   revoked: number of jobs that ended.
--   left: number of names, the last ones, that the caller must pass to the next invocation.
--   after: argument of the next invocation.
--   other: name of this invocation that has a job which did not wait, or no job.
-- Cost: at most MAX_REVOKED jobs per invocation, and as many names, limited by the caller.

-- Returns the same values as `job_index.jobs_of_task`, for a stamp. Removes these jobs from the stamp's index, so that
-- the next invocation gets other jobs.
local function jobs_of_stamp(stamp, _, max_jobs)
    local ids = flat.members(redis.call("ZPOPMIN", key.stamped(stamp), max_jobs))
    return ids, #ids == max_jobs
end

-- Ends the waiting jobs of the names in `arguments`, from the fourth argument. Returns the reply.
local function end_all(by, after, arguments)
    local next_jobs = by == "task" and job_index.jobs_of_task or jobs_of_stamp
    local revoked, processed, others = 0, 0, {}
    for i = 4, #arguments do
        if processed == protocol.MAX_REVOKED then
            return { revoked, #arguments - i + 1, 0, others }
        end
        local ids, has_more, last =
            next_jobs(arguments[i], i == 4 and after or 0, protocol.MAX_REVOKED - processed)
        local ended = 0
        for _, id in ipairs(ids) do
            ended = ended + (ends.waiting(id, "revoked") and 1 or 0)
        end
        revoked, processed = revoked + ended, processed + #ids
        others[#others + 1] = (ended < #ids or #ids == 0) and arguments[i] or nil
        if has_more then
            return { revoked, #arguments - i + 1, tonumber(last or 0), others }
        end
    end
    return { revoked, 0, 0, others }
end

function functions.revoke(ARGV)
    local by = ARGV[1] -- kind of the names: "task" for task ids, "stamp" for stamps ("name:value"), encoded
    local keep_s = ARGV[2] -- seconds for which these names stay revoked
    local after = ARGV[3] -- number of the last processed job of the first name, or 0
    -- ARGV[4..]: names

    for i = 4, #ARGV do
        if by == "task" then
            job_index.revoke(ARGV[i], keep_s)
        else
            redis.call("SET", key.revoked_stamp(ARGV[i]), call.now, "EX", keep_s)
        end
    end
    hooks.many_leave()
    local reply = end_all(by, after, ARGV)
    hooks.leave_to_tick()
    return reply
end

-- pause: jobs of a type, of a key or of any type do not start until `resume` or until the pause ends. Waiting and newly
-- published jobs keep waiting, and running jobs keep running. Control messages recall jobs that workers have not
-- started (`limit_changes.put_signs`).
--
-- Returns 1 if the target was not paused before, or 0.
-- Cost: O(1) in jobs; for a key, O(1) per sub-lane. If more than MAX_SIGNED workers must recall jobs, the next ticks
-- send the other messages.
function functions.pause(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"
    local for_us = ARGV[2] -- duration in µs, or "" without an end
    local why = ARGV[3] -- reason, for display

    local is_new = redis.call("HEXISTS", key.pauses, what) == 0
    local until_us = for_us ~= "" and call.text(call.now_us + tonumber(for_us)) or "0"
    if for_us ~= "" then
        redis.call("ZADD", key.pause_ends, until_us, what)
    else
        redis.call("ZREM", key.pause_ends, what)
    end
    limit_changes.pause(what, call.now .. " " .. until_us .. " " .. why)
    if limit_changes.put_signs() then
        workers.trigger_tick()
    end
    return is_new and 1 or 0
end

-- resume: ends a pause. Jobs that may start now get the free slots.
--
-- Returns {resumed, unfilled}. resumed: 0 if the target was not paused. unfilled: see `fill`.
-- Cost: the cost of `fill`.
function functions.resume(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"

    local was_paused = redis.call("HEXISTS", key.pauses, what)
    limit_changes.pause(what) -- always: another client may have deleted the field in `pauses`
    return { was_paused, fill.anywhere({}) }
end

-- configure: changes settings at run time, or resets them to their values in app.conf. They are effective for the next
-- claim. Changed limits of keys can admit or block jobs that wait for these keys.
--
-- Returns {revision, unfilled}. revision: revision of the settings, which increases with each change. unfilled: see
-- `fill`.
-- Cost: O(settings given), plus the re-evaluation of at most MAX_KEYS keys. The next ticks continue with the other
-- keys.
function functions.configure(ARGV)
    -- ARGV[1..]: name, value, ...; "" resets a setting
    local revision = settings_in_force.change(ARGV)
    hooks.recheck()
    return { revision, fill.anywhere({}) }
end
