-- recurring: a recurring call is fired when no matching call was published for an interval (`stale`, µs). A job matches
-- by its type, merge key and task name. A matching job postpones the call when it is enqueued, or when its run has
-- succeeded (`since`, "enqueue" or "end").
--   Hash `recurring_matches`: names of the calls that matching jobs postpone.
--   Hash `recurring_call`: fields of a call.
--   Sorted set `recurring`: the calls by due time. A suspended call is due at infinity there. Its hash has the time at
--     which it would be due.

-- Returns the field of hash `recurring_matches` for jobs that match each other. The task name is last, because it can
-- be any string.
function recurring.place(type, merge_key, task)
    return type and merge_key and task and type .. " " .. merge_key .. " " .. task
end

-- Adds the name of a recurring call to `place`. Returns true unless MAX_ALIKE calls already match.
function recurring.add_name(place, name)
    local names = redis.call("HGET", key.recurring_matches, place)
    if texts.number_of_words(names) >= protocol.MAX_ALIKE then
        return false
    end
    redis.call("HSET", key.recurring_matches, place, names and names .. " " .. name or name)
    return true
end

-- Removes a name from `place`, which can be nil.
function recurring.remove_name(place, name)
    local remaining = {}
    for listed in string.gmatch(place and redis.call("HGET", key.recurring_matches, place) or "", "%S+") do
        remaining[#remaining + 1] = listed ~= name and listed or nil
    end
    if place then
        hash.write(key.recurring_matches, place, #remaining > 0 and table.concat(remaining, " "))
    end
end

-- Sets the due time of a recurring call. `is_suspended`: field of its hash.
function recurring.set_due(name, due_us, is_suspended)
    local due = call.text(due_us)
    redis.call("HSET", key.recurring_call(name), "due", due)
    if not is_suspended then
        redis.call("ZADD", key.recurring, due, name)
    end
end

-- Returns the apps that declined the due recurring call, because they do not define its task, or nil if the last app
-- did so too long ago. `left`, `left_at`: fields of its hash.
function recurring.declining_apps(left, left_at)
    local since_us = call.now_us - (tonumber(left_at) or 0)
    return left and since_us >= 0 and since_us < protocol.OTHERS_HAVE_US and left or nil
end

-- Returns the names of the recurring calls that a job matches, separated by spaces, or nil. `type`, `rules`, `name`:
-- fields of the job hash.
-- Cost: one command; none for a job without a merge key.
function recurring.names_of(type, rules, name)
    local merge_key = type and rules_codec.merge_key(rules)
    return merge_key and redis.call("HGET", key.recurring_matches, recurring.place(type, merge_key, name or "")) or nil
end

-- Returns the calls in `names` that an "enqueue" or an "end" (`since`) postpones: name, stale_us, is_suspended, due_us.
-- `names` can be nil.
local function rows_of(names, since)
    local rows = {}
    for name in string.gmatch(names or "", "%S+") do
        local call_since, stale_us, is_suspended, due =
            unpack(redis.call("HMGET", key.recurring_call(name), "since", "stale", "suspended", "due"))
        if call_since == since and tonumber(stale_us) then
            rows[#rows + 1] = { name = name, stale_us = tonumber(stale_us), is_suspended = is_suspended,
                due_us = tonumber(due) or math.huge }
        end
    end
    return rows
end

-- Postpones the recurring calls in `rows` because of a job of `task`. `fired`: the call that fired the job, or nil.
local function postpone(rows, task, fired)
    local postponed = 0
    for _, row in ipairs(rows) do
        redis.call("HSET", key.recurring_call(row.name), "matched", call.now, "by", task or "")
        recurring.set_due(row.name, call.now_us + row.stale_us, row.is_suspended)
        postponed = postponed + (row.name ~= fired and 1 or 0)
    end
    if postponed > 0 then
        redis.call("HINCRBY", key.counters, "recurring_reset", postponed)
    end
end

-- Called when a job of `task`, except a retry, has become pending. Postpones the matching calls.
function recurring.match(type, rules, name, task, fired)
    postpone(rows_of(recurring.names_of(type, rules, name), "enqueue"), task, fired)
end

-- Called when the run of job `id` has succeeded. Postpones the matching calls. A retried task already has another job,
-- and postpones no call before its last job ends. `ran`: the job, or the call of a batch that was run.
function recurring.run(type, rules, name, id, ran, task)
    local rows = rows_of(recurring.names_of(type, rules, name), "end")
    if #rows > 0 and ((task or "") == "" or redis.call("GET", key.task(task)) == ran) then
        postpone(rows, task, redis.call("HGET", key.job(id), "recurring"))
    end
end

-- Called when a job that was pending since `enqueued` ends without a run. A call that it postponed is due at most an
-- interval after `enqueued`, even if later jobs postponed it further. If that time is past, the call is due in 1 µs:
-- `fire_recurring` makes one job per due time, so the call needs a new one.
function recurring.take_back(type, rules, name, enqueued)
    for _, row in ipairs(rows_of(recurring.names_of(type, rules, name), "enqueue")) do
        local due_us = math.max(call.now_us + 1, (tonumber(enqueued) or math.huge) + row.stale_us)
        if due_us < row.due_us then
            recurring.set_due(row.name, due_us, row.is_suspended)
        end
    end
end

-- Called when the server's clock was set back. No call may be due later than if it were postponed now. `from`: position
-- of the first call to check. Returns true if there are more than MAX_RECHECKED: the next tick continues.
function hooks.clock_was_set_back(from)
    local members = redis.call("ZRANGE", key.recurring, from, from + protocol.MAX_RECHECKED - 1, "WITHSCORES")
    for nth = 1, #members, 2 do
        local name, at_us = members[nth], tonumber(members[nth + 1])
        local due, stale_us = unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale"))
        local latest_us = call.now_us + (tonumber(stale_us) or math.huge)
        if (tonumber(due) or 0) > latest_us then
            redis.call("HSET", key.recurring_call(name), "due", call.text(latest_us))
        end
        if at_us > latest_us and at_us ~= math.huge then -- otherwise it is suspended
            redis.call("ZADD", key.recurring, call.text(latest_us), name)
        end
    end
    local has_more = #members == 2 * protocol.MAX_RECHECKED
    if has_more then -- no call has moved to a later position
        redis.call("HSET", key.clock, "recheck", from + protocol.MAX_RECHECKED)
    elseif from > 0 then
        redis.call("HDEL", key.clock, "recheck")
    end
    return has_more
end
