-- tick: scheduled -> pending, and other time-driven work: expired waiting jobs end, and jobs of dead workers are
-- reclaimed. Any number of dispatchers can invoke it. Each kind of work is a function; the server function defines
-- their order.
--
-- Returns {again, next_due_us, due, recovered, {dead, ...}, unreported, recurring, {list, ...}, unfilled, now, ticked}.
--   again: 1 if more work may remain and the caller must invoke the function again.
--   next_due_us: µs until the next scheduled job or recurring call is due, or -1 if there is none.
--   dead: name of a dead worker that was removed, encoded, and cut to MAX_REQUEUE_TOKEN.
--   unreported: 1 if some ends are unreported (`next_report`).
--   recurring: 1 if recurring calls are due (`due_recurring`).
--   list: a given list with messages for `ingest`.
--   unfilled: see `fill`.
--   now: server time in µs.
--   ticked: time of the previous tick, or "".
-- Cost: O(moves * log n), at most MAX_MOVES of each kind per invocation; O(lists).

-- Returns the first time in a sorted set in µs, or infinity if the set is empty or all its members are suspended.
local function first_time(name)
    return tonumber(redis.call("ZRANGE", name, 0, 0, "WITHSCORES")[2]) or math.huge
end

-- Returns the time from which a worker's silence is counted. Without recent ticks (restart, failover, clock change) the
-- server cannot know how long its workers have been silent. The second value is the position of the first recurring
-- call to compare with a clock that was set back, or nil. The third value is the time of the previous tick as a string,
-- or "".
local function silence_began()
    local before, grace, recheck_from = unpack(redis.call("HMGET", key.clock, "ticked", "grace", "recheck"))
    local ticked = tonumber(before)
    grace, recheck_from = tonumber(grace), tonumber(recheck_from)
    if ticked and call.now_us < ticked then
        recheck_from = 0
    end
    if not (ticked and grace and grace <= call.now_us and ticked <= call.now_us)
        or call.now_us - ticked > protocol.SILENCE_COUNTS_US then
        grace = call.now_us
    end
    redis.call("HSET", key.clock, "ticked", call.now, "grace", call.text(grace))
    return grace, recheck_from, before or ""
end

-- Queues a job whose time has come. `row`: fields of its hash. Adds the job's type to `types`.
local function promote(id, fields, types, settings)
    local type, lane, enqueued, deliveries, patient, rank, head, due = unpack(fields)
    if not (corrupt.is_word(id) and corrupt.can_wait(type, lane, enqueued, deliveries)) then
        redis.call("ZREM", key.scheduled, id)
        types[#types + 1] = requeue.quarantine(id, "scheduled", settings)
        return
    end
    types[#types + 1] = type
    if not (patient or rank or due_times.in_field(due)) and due_times.may_stretch() then
        head = due_times.renew(id, type, redis.call("HGET", key.job(id), "name"), due, tonumber(enqueued))
    end
    if patient or rank or not hooks.of(id).is_due(id, type, lane, enqueued, head or nil, due or nil) then
        hooks.wait(id, type, lane, lanes.order(enqueued, rank, head)) -- first, because it can fail on corrupt data
        redis.call("HSET", key.job(id), "state", "pending")
        redis.call("ZREM", key.scheduled, id)
    end
    if patient then
        redis.call("HDEL", key.job(id), "patient")
    end
end

-- Queues the jobs whose time has come. Returns their number.
local function promote_due(types, settings)
    local due = redis.call("ZRANGEBYSCORE", key.scheduled, "-inf", call.now, "LIMIT", 0, protocol.MAX_MOVES)
    local on_time = {} -- handled after jobs whose merge window or pause ended: these jobs can join them
    for _, id in ipairs(due) do
        local fields = redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "deliveries", "patient", "rank",
            "head", "due")
        if fields[5] or fields[6] then
            promote(id, fields, types, settings)
        else
            on_time[#on_time + 1] = { id, fields }
        end
    end
    for _, job in ipairs(on_time) do
        promote(job[1], job[2], types, settings)
    end
    return #due
end

-- Ends jobs that have expired while they waited. Workers handle claimed jobs. Returns the number of checked jobs.
local function end_expired()
    local expired = redis.call("ZRANGEBYSCORE", key.expires, "-inf", call.now, "LIMIT", 0, protocol.MAX_MOVES)
    for _, id in ipairs(expired) do
        redis.call("ZREM", key.expires, id)
        ends.waiting(id, "expired")
    end
    return #expired
end

-- Reclaims the jobs of silent workers. Returns the number of reclaimed jobs, and the names of the dead workers.
local function recover_dead_workers(grace, types, settings)
    local recovered, dead = 0, {}
    local silent_since = call.now_us - settings.worker_timeout_us
    if grace > silent_since then
        return 0, dead
    end
    local types_remaining = protocol.MAX_TYPES -- of the removed workers, except the last one
    local silent = redis.call("ZRANGEBYSCORE", key.heartbeats, "-inf", call.text(silent_since), "LIMIT", 0,
        protocol.MAX_MOVES)
    for _, worker in ipairs(silent) do
        types_remaining = types_remaining - #workers.types_of(worker)
        local name = redis.call("HGET", key.worker(worker), "name")
        local reclaimed, is_removed =
            dead_workers.take_back(worker, protocol.MAX_MOVES - recovered, types, settings, "silent")
        recovered = recovered + reclaimed
        if not is_removed then
            return recovered, dead
        end
        dead[#dead + 1] = string.sub(name or worker, 1, protocol.MAX_REQUEUE_TOKEN)
        if types_remaining <= 0 then
            break
        end
    end
    return recovered, dead
end

-- Returns the lists that exist. A list that this user must not read is returned as well: `ingest` will report the
-- missing permission.
local function with_messages(lists)
    local existing = {}
    for first = 1, #lists, protocol.MAX_UNPACKED do
        local last = math.min(first + protocol.MAX_UNPACKED - 1, #lists)
        if redis.pcall("EXISTS", unpack(lists, first, last)) ~= 0 then
            for i = first, last do
                if redis.pcall("EXISTS", lists[i]) ~= 0 then
                    existing[#existing + 1] = lists[i]
                end
            end
        end
    end
    return existing
end

function functions.tick(ARGV)
    idle_libraries.collect_in_steps()
    -- ARGV[1..]: lists of stock Celery, at most a few hundred

    local settings = settings_in_force.read()
    local types = {}
    local grace, recheck_from, ticked_before = silence_began()
    local has_more_to_recheck = false
    if recheck_from then
        has_more_to_recheck = hooks.clock_was_set_back(recheck_from)
    end
    local expired = end_expired()
    local due = promote_due(types, settings)
    local recovered, dead = recover_dead_workers(grace, types, settings)
    local rules_have_more, may_preempt = hooks.tick()
    local has_more_ended = false
    if redis.call("EXISTS", key.ended) == 1 then
        has_more_ended = ends.trim(settings)
    end
    local unfilled = fill.anywhere(types, settings)
    if may_preempt then
        hooks.order_evictions()
    end

    local recurring_us = first_time(key.recurring)
    local is_any_due = recurring_us <= call.now_us
    if is_any_due then -- `due_recurring` handles these immediately
        local later = redis.call("ZRANGEBYSCORE", key.recurring, "(" .. call.now, "+inf", "WITHSCORES", "LIMIT", 0, 1)
        recurring_us = tonumber(later[2]) or math.huge
    end
    local next_us = math.min(first_time(key.scheduled), first_time(key.due_keys), recurring_us)
    local next_due_us = next_us < math.huge and math.max(0, next_us - call.now_us) or -1
    local is_full = expired == protocol.MAX_MOVES or due == protocol.MAX_MOVES or recovered == protocol.MAX_MOVES
        or rules_have_more or has_more_to_recheck or has_more_ended
    local unreported = redis.call("ZRANGEBYSCORE", key.unreported, "-inf", call.now, "LIMIT", 0, 1)
    return {
        is_full and 1 or 0, call.text(next_due_us), due, recovered, dead, #unreported, is_any_due and 1 or 0,
        with_messages(ARGV), unfilled, call.now, ticked_before,
    }
end
