-- tick: scheduled -> pending, and what else no event triggers: jobs that wait and have expired end, and the jobs of
-- dead workers come back. Any number of dispatchers may call it.
-- A reason for the length: each kind of work is a function; the arrow is their order.
-- RETURNS {again, next_due_us, due, recovered, dead workers, untold, recurring, {list, ...}, unfilled, now, ticked};
-- again 1: call again, there may be more of a kind. next_due_us: time until the next scheduled job, or recurring call,
-- is due; -1 for none. untold 1: the ends of some jobs are to be told (`announce`). recurring 1: recurring calls are to
-- be made (`due`). list: one of the given lists that has messages for `ingest`. unfilled: as `fill` returns it. now: of
-- the server, µs. ticked: the time of the tick before, "" if there was none.
-- Cost: O(moves * log n), at most MOST_MOVES of each kind in one call; O(lists).

-- RETURNS the first time in a sorted set, µs; infinity if there is none, or if all that is there is suspended.
local function first_time(name)
    return tonumber(redis.call("ZRANGE", name, 0, 0, "WITHSCORES")[2]) or math.huge
end

-- RETURNS the time since which a worker's silence counts. A server that was not ticked (restart, failover, a clock
-- that stepped) knows nothing of its workers' silence. A second value is the position of the first recurring call
-- whose time is to be compared with a clock that was set back; nil if none is. A third value is the time of the tick
-- before, as text; "" if there was none.
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

-- Has a job wait whose time has come. `row`: what it says of the job. Adds its type to `types`.
local function promote(id, row, types, settings)
    local type, lane, enqueued, deliveries, patient, rank = unpack(row)
    if not (corrupt.is_word(id) and corrupt.can_wait(type, lane, enqueued, deliveries)) then
        redis.call("ZREM", key.scheduled, id)
        types[#types + 1] = requeue.quarantine(id, "scheduled", settings)
        return
    end
    types[#types + 1] = type
    if patient or rank or not hooks.of(id).is_due(id, type, lane, enqueued) then
        hooks.wait(id, type, lane, lanes.order(enqueued, rank)) -- first: what it meets may be spoiled
        redis.call("HSET", key.job(id), "state", "pending")
        redis.call("ZREM", key.scheduled, id)
    end
    if patient then
        redis.call("HDEL", key.job(id), "patient")
    end
end

-- Has the jobs wait whose time has come. RETURNS how many were due.
local function promote_due(types, settings)
    local due = redis.call("ZRANGEBYSCORE", key.scheduled, "-inf", call.now, "LIMIT", 0, protocol.MOST_MOVES)
    local in_time = {} -- these go after those that have waited for more calls, or for a pause: they join what waits
    for _, id in ipairs(due) do
        local row = redis.call("HMGET", key.job(id), "type", "lane", "enqueued", "deliveries", "patient", "rank")
        if row[5] or row[6] then
            promote(id, row, types, settings)
        else
            in_time[#in_time + 1] = { id, row }
        end
    end
    for _, each in ipairs(in_time) do
        promote(each[1], each[2], types, settings)
    end
    return #due
end

-- Ends jobs that have expired while they waited; a claimed job is left to its worker. RETURNS how many were looked
-- at.
local function end_expired()
    local expired = redis.call("ZRANGEBYSCORE", key.expires, "-inf", call.now, "LIMIT", 0, protocol.MOST_MOVES)
    for _, id in ipairs(expired) do
        redis.call("ZREM", key.expires, id)
        ends.waiting(id, "expired")
    end
    return #expired
end

-- Has the jobs of silent workers come back. RETURNS how many did, and the number of dead workers.
local function recover_the_dead(grace, types, settings)
    local recovered, dead = 0, 0
    local silent_since = call.now_us - settings.worker_timeout_us
    if grace > silent_since then
        return 0, 0
    end
    local types_left = protocol.MOST_TYPES -- of the workers that are forgotten, but for the last one
    local silent = redis.call("ZRANGEBYSCORE", key.heartbeats, "-inf", call.text(silent_since), "LIMIT", 0,
        protocol.MOST_MOVES)
    for _, worker in ipairs(silent) do
        types_left = types_left - #workers.types_of(worker)
        local back_again, gone =
            dead_workers.take_back(worker, protocol.MOST_MOVES - recovered, types, settings, true)
        recovered = recovered + back_again
        if not gone then
            return recovered, dead
        end
        dead = dead + 1
        if types_left <= 0 then
            break
        end
    end
    return recovered, dead
end

-- RETURNS those of `lists` that exist. A list that this user may not read is returned as well: `ingest` will report
-- the missing right.
local function with_messages(lists)
    local found = {}
    for first = 1, #lists, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #lists)
        if redis.pcall("EXISTS", unpack(lists, first, last)) ~= 0 then
            for i = first, last do
                if redis.pcall("EXISTS", lists[i]) ~= 0 then
                    found[#found + 1] = lists[i]
                end
            end
        end
    end
    return found
end

function functions.tick(ARGV)
    idle_libraries.collect_in_steps()
    -- ARGV[1..]: lists of stock Celery, a few hundred at most

    local settings = settings_in_force.read()
    local types = {}
    local grace, recheck_from, ticked_before = silence_began()
    local has_more_to_recheck = false
    if recheck_from then
        has_more_to_recheck = hooks.clock_was_set_back(recheck_from)
    end
    local expired = end_expired()
    local due = promote_due(types, settings)
    local recovered, dead = recover_the_dead(grace, types, settings)
    local have_rules_more, may_some_stop = hooks.tick()
    local has_more_ended = false
    if redis.call("EXISTS", key.ended) == 1 then
        has_more_ended = ends.trim(settings)
    end
    local unfilled = fill.fill(types, "", settings, slot_choice.view())[1]
    if may_some_stop then
        hooks.order_evictions()
    end

    local recurring_us = first_time(key.recurring)
    local is_any_due = recurring_us <= call.now_us
    if is_any_due then -- these are asked for at once (`due`)
        local later = redis.call("ZRANGEBYSCORE", key.recurring, "(" .. call.now, "+inf", "WITHSCORES", "LIMIT", 0, 1)
        recurring_us = tonumber(later[2]) or math.huge
    end
    local next_us = math.min(first_time(key.scheduled), first_time(key.due_keys), recurring_us)
    local next_due_us = next_us < math.huge and math.max(0, next_us - call.now_us) or -1
    local is_full = expired == protocol.MOST_MOVES or due == protocol.MOST_MOVES or recovered == protocol.MOST_MOVES
        or have_rules_more or has_more_to_recheck or has_more_ended
    local untold = redis.call("ZRANGEBYSCORE", key.untold, "-inf", call.now, "LIMIT", 0, 1)
    return {
        is_full and 1 or 0, call.text(next_due_us), due, recovered, dead, #untold, is_any_due and 1 or 0,
        with_messages(ARGV), unfilled, call.now, ticked_before,
    }
end
