-- recurring: server functions for recurring calls: declare them, find the due ones, call or decline them.

-- declare_recurring: declares recurring calls, for an app.conf or at run time. The last declaration applies. An
-- unchanged declaration that an app.conf repeats has no effect.
--
-- Returns {{replaced, ...}, {refused, ...}}.
--   replaced: names of calls with a different earlier declaration by another app or at run time.
--   refused: names of calls that are not declared, because MOST_ALIKE other calls already match the same jobs.
-- Cost: O(calls); the caller limits their number and size.
local FIELDS = 7 -- per call

function functions.declare_recurring(ARGV)
    local app = ARGV[1] -- encoded; "" at run time
    -- ARGV[2..]: name, type, merge key, interval in µs, "enqueue" or "end", task name, signature, ...

    local replaced, refused = {}, {}

    local function declare(digest, name, type, merge_key, stale, since, task, signature)
        local row = key.recurring_call(name)
        local old_digest, old_app, old_type, old_key, old_task, old_stale, due, is_suspended =
            unpack(redis.call("HMGET", row, "digest", "app", "type", "merge", "task", "stale", "due", "suspended"))
        local place, old_place = recurring.place(type, merge_key, task), recurring.place(old_type, old_key, old_task)
        if place ~= old_place and not recurring.add_name(place, name) then
            refused[#refused + 1] = name
            return
        end
        if app ~= "" then
            redis.call("HSET", key.recurring_of(app), name, digest)
        end
        if old_digest and old_digest ~= digest and old_app ~= app then
            replaced[#replaced + 1] = name
        end
        redis.call("HSET", row, "type", type, "merge", merge_key, "stale", stale, "since", since, "task", task,
            "digest", digest, "app", app)
        redis.call("SET", key.signature(name), signature)
        if place == old_place and tonumber(due) and tonumber(old_stale) then
            if old_stale ~= stale then -- the call matches the same jobs, so its interval keeps its start
                local due_us = tonumber(due) - tonumber(old_stale) + tonumber(stale)
                recurring.set_due(name, math.max(call.now_us, due_us), is_suspended)
            end
            return
        end
        if place ~= old_place then
            recurring.remove_name(old_place, name)
        end
        redis.call("HDEL", row, "matched", "by", "made", "left", "left_at")
        if is_suspended then
            redis.call("ZADD", key.recurring, "inf", name)
        end
        recurring.set_due(name, call.now_us + tonumber(stale), is_suspended)
    end

    for first = 2, #ARGV, FIELDS do
        local name, type, merge_key, stale, since, task, signature = unpack(ARGV, first, first + FIELDS - 1)
        local digest =
            redis.sha1hex(type .. " " .. merge_key .. " " .. stale .. " " .. since .. " " .. task .. "\n" .. signature)
        if app == "" or redis.call("HGET", key.recurring_of(app), name) ~= digest then
            declare(digest, name, type, merge_key, stale, since, task, signature)
        end
    end
    return { replaced, refused }
end

-- due_recurring: assigns a due recurring call to a process. The process fires the call (`fire_recurring`), or declines
-- it (`decline_recurring`). Otherwise the call is assigned again after a delay, because a process can hang.
--
-- Returns {name, due, task name, signature}, or {} if no call is due. due: argument for `fire_recurring`, which checks
-- that the call is still due.
-- Cost: at most MOST_DUE_LOOKED_AT recurring calls, and one signature.

-- Returns true if the interval of a call begins at the end of its runs (`since`), and the call's last job has not
-- ended.
local function is_under_way(since, made)
    local state = since == "end" and made and redis.call("HGET", key.job(made), "state")
    return state == "scheduled" or state == "pending" or state == "merged" or state == "claimed"
end

function functions.due_recurring(ARGV)
    local again_us = tonumber(ARGV[1]) -- delay until the call is assigned again
    local app = ARGV[2] -- encoded name of the calling app; it gets its declined calls again only after a while

    for _, name in ipairs(redis.call("ZRANGEBYSCORE", key.recurring, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_DUE_LOOKED_AT)) do
        local due, task, left, left_at, since, made =
            unpack(redis.call("HMGET", key.recurring_call(name), "due", "task", "left", "left_at", "since", "made"))
        if not (due and task) then
            redis.call("ZREM", key.recurring, name)
            corrupt.record("recurring call " .. name .. ", of which only the time was left")
        elseif is_under_way(since, made) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + protocol.TICK_US), name)
        elseif not texts.has_word(recurring.left_to_others(left, left_at), app) then
            redis.call("ZADD", key.recurring, call.text(call.now_us + again_us), name)
            return { name, due, task, redis.call("GET", key.signature(name)) or "" }
        end
    end
    return {}
end

-- fire_recurring: due recurring call -> pending, or scheduled. Publishes the call's job, and sets the next due time.
-- Any number of processes can try: each due time has one job.
--
-- Returns {state, unfilled, served} as in publish, or {} if the call is no longer due and nothing has changed.
-- Cost: the cost of publish for one job. A full server can reject the first write, before any change.
function functions.fire_recurring(ARGV)
    local name = ARGV[1]
    local due = ARGV[2] -- from `due_recurring`; "" fires the call for an operator, regardless of its due time
    -- ARGV[3..]: the fields of the job, in the order of schema/job_record
    local job = job_fields.at(ARGV, 3)

    local its_due, stale_us, is_suspended =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale", "suspended"))
    if not tonumber(stale_us) or (due ~= "" and (due ~= its_due or is_suspended)) then
        return {}
    elseif due ~= "" and (tonumber(its_due) or 0) > call.now_us then
        return {} -- the clock was set back
    end
    job.recurring = name
    local reply = enqueue.only(job)
    local state = reply[1]
    if state == protocol.IS_REFUSED then
        return reply
    elseif state ~= protocol.IS_KNOWN then
        redis.call("HSET", key.job(job.id), "recurring", name)
        redis.call("HSET", key.recurring_call(name), "made", job.id)
        redis.call("HINCRBY", key.counters, "recurring_fired", 1)
    end
    recurring.set_due(name, call.now_us + tonumber(stale_us), is_suspended)
    return reply
end

-- decline_recurring: passes a due recurring call to other apps, because `app` does not define its task.
--
-- Returns 1 if the call is still due, or 0.
-- Cost: O(log n) in recurring calls.
function functions.decline_recurring(ARGV)
    local name = ARGV[1]
    local app = ARGV[2] -- encoded

    local due, is_suspended, left, left_at =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "suspended", "left", "left_at"))
    if is_suspended or (tonumber(due) or math.huge) > call.now_us then
        return 0
    end
    left = recurring.left_to_others(left, left_at)
    if not left then
        left = app
    elseif not texts.has_word(left, app) then
        left = left .. " " .. app
    end
    redis.call("HSET", key.recurring_call(name), "left", left, "left_at", call.now)
    redis.call("ZADD", key.recurring, call.now, name)
    return 1
end

-- pause_recurring: suspends or resumes a recurring call. A suspended call is kept, but is never due. A resumed call
-- keeps its due time, and is due immediately if that time has passed.
--
-- Returns 1 if the call exists, or 0.
-- Cost: O(log n) in recurring calls.
function functions.pause_recurring(ARGV)
    local name = ARGV[1]
    local suspended = ARGV[2] == "1" -- false: resume

    local due, is_suspended, stale = unpack(redis.call("HMGET", key.recurring_call(name), "due", "suspended", "stale"))
    if not stale then
        return 0
    end
    if suspended then
        redis.call("HSET", key.recurring_call(name), "suspended", 1)
        redis.call("ZADD", key.recurring, "inf", name)
    elseif is_suspended then
        redis.call("HDEL", key.recurring_call(name), "suspended")
        recurring.set_due(name, math.max(call.now_us, tonumber(due) or 0), false)
    end
    return 1
end

-- remove_recurring: stops recurring calls for an operator, or because an app.conf no longer declares them. In the
-- second case, calls declared since by another app or at run time are kept.
--
-- Returns the number of stopped recurring calls.
-- Cost: O(names), limited by the caller.
function functions.remove_recurring(ARGV)
    local app = ARGV[1] -- the app whose app.conf no longer declares them, encoded; "" for an operator
    -- ARGV[2..]: names

    local stopped = 0
    for i = 2, #ARGV do
        local name = ARGV[i]
        if app ~= "" then
            redis.call("HDEL", key.recurring_of(app), name)
        end
        local its_app, type, merge_key, task =
            unpack(redis.call("HMGET", key.recurring_call(name), "app", "type", "merge", "task"))
        if app == "" or its_app == app then
            stopped = stopped + redis.call("UNLINK", key.recurring_call(name))
            redis.call("UNLINK", key.signature(name))
            redis.call("ZREM", key.recurring, name)
            recurring.remove_name(recurring.place(type, merge_key, task), name)
        end
    end
    return stopped
end
