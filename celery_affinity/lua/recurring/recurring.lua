-- recurring: a recurring call is made when no call that matches it came for a while: its interval (`stale`, µs). A job
-- matches by its type, merge key and task name. Each job that matches puts the call off, either when it is enqueued or
-- when its run has succeeded (`since`, "enqueue" or "end"). Hash `recurs` has the names of the calls that such jobs put
-- off; hash `recurring_call` is the row of a call; sorted set `recurring` has the calls by the times at which they are
-- due. A call that is suspended is due at infinity there; its row has the time at which it would be due.

-- RETURNS the field of hash `recurs` for jobs that match each other. The name of the task, which may be any text, is
-- last.
function recurring.place(type, merge_key, task)
    return type and merge_key and task and type .. " " .. merge_key .. " " .. task
end

-- Adds the name of a recurring call to those at `place`. RETURNS whether there was room.
function recurring.add_name(place, name)
    local names = redis.call("HGET", key.recurs, place)
    if texts.number_of_words(names) >= protocol.MOST_ALIKE then
        return false
    end
    redis.call("HSET", key.recurs, place, names and names .. " " .. name or name)
    return true
end

-- Removes a name from those at `place`, which may be nil.
function recurring.remove_name(place, name)
    local left = {}
    for each in string.gmatch(place and redis.call("HGET", key.recurs, place) or "", "%S+") do
        left[#left + 1] = each ~= name and each or nil
    end
    if place then
        hash.write(key.recurs, place, #left > 0 and table.concat(left, " "))
    end
end

-- Sets the time at which a recurring call is due. `is_suspended`: what its row says.
function recurring.set_due(name, due_us, is_suspended)
    local due = call.text(due_us)
    redis.call("HSET", key.recurring_call(name), "due", due)
    if not is_suspended then
        redis.call("ZADD", key.recurring, due, name)
    end
end

-- RETURNS the apps that have left a recurring call, which is due, to others since they do not know its task; nil if the
-- last did so too long ago. `left`, `left_at`: what its row says.
function recurring.left_to_others(left, left_at)
    local since_us = call.now_us - (tonumber(left_at) or 0)
    return left and since_us >= 0 and since_us < protocol.OTHERS_HAVE_US and left or nil
end

-- RETURNS the names of the recurring calls that a job matches, separated by blanks; nil for none. `type`, `rules`,
-- `name`: what the row of the job says.
-- Cost: one command; none for a job without a merge key.
function recurring.names_of(type, rules, name)
    local merge_key = type and rules_codec.merge_key(rules)
    return merge_key and redis.call("HGET", key.recurs, recurring.place(type, merge_key, name or "")) or nil
end

-- RETURNS what the rows say of those of `names`, nil for none, that are put off by an "enqueue" or an "end" (`since`):
-- name, stale_us, is_suspended, due_us.
local function rows_of(names, since)
    local rows = {}
    for name in string.gmatch(names or "", "%S+") do
        local its_since, stale_us, is_suspended, due =
            unpack(redis.call("HMGET", key.recurring_call(name), "since", "stale", "suspended", "due"))
        if its_since == since and tonumber(stale_us) then
            rows[#rows + 1] = { name = name, stale_us = tonumber(stale_us), is_suspended = is_suspended,
                due_us = tonumber(due) or math.huge }
        end
    end
    return rows
end

-- A job of `task` puts off the recurring calls in `rows`. `fired`: the call that the job itself is made by, if any.
local function put_off(rows, task, fired)
    local number = 0
    for _, row in ipairs(rows) do
        redis.call("HSET", key.recurring_call(row.name), "matched", call.now, "by", task or "")
        recurring.set_due(row.name, call.now_us + row.stale_us, row.is_suspended)
        number = number + (row.name ~= fired and 1 or 0)
    end
    if number > 0 then
        redis.call("HINCRBY", key.counters, "recurring_reset", number)
    end
end

-- A job of `task`, which is no retry, has become pending: puts off the calls that it matches.
function recurring.match(type, rules, name, task, fired)
    put_off(rows_of(recurring.names_of(type, rules, name), "enqueue"), task, fired)
end

-- The run of job `id` has succeeded: puts off the recurring calls that the job matches. A task that was retried has
-- another job by now, and puts off none before the last one ends. `ran`: the job, or the call of a batch that was run.
function recurring.run(type, rules, name, id, ran, task)
    local rows = rows_of(recurring.names_of(type, rules, name), "end")
    if #rows > 0 and ((task or "") == "" or redis.call("GET", key.task(task)) == ran) then
        put_off(rows, task, redis.call("HGET", key.job(id), "recurring"))
    end
end

-- A job that was pending since `enqueued` ends without a run. Each recurring call that the job put off is due an
-- interval after `enqueued` at the latest, even if later jobs put off the call further. If that time is past, the call
-- is due in 1 µs: `fire` makes one job for each due time, so the call needs a new one.
function recurring.take_back(type, rules, name, enqueued)
    for _, row in ipairs(rows_of(recurring.names_of(type, rules, name), "enqueue")) do
        local due_us = math.max(call.now_us + 1, (tonumber(enqueued) or math.huge) + row.stale_us)
        if due_us < row.due_us then
            recurring.set_due(row.name, due_us, row.is_suspended)
        end
    end
end

-- The server's clock was set back: no call is to be due later than if it were put off now. `from`: position of the
-- first call to look at. RETURNS whether there are more than MOST_RECHECKED: the next tick goes on with these.
function hooks.clock_was_set_back(from)
    local found = redis.call("ZRANGE", key.recurring, from, from + protocol.MOST_RECHECKED - 1, "WITHSCORES")
    for nth = 1, #found, 2 do
        local name, at_us = found[nth], tonumber(found[nth + 1])
        local due, stale_us = unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale"))
        local latest_us = call.now_us + (tonumber(stale_us) or math.huge)
        if (tonumber(due) or 0) > latest_us then
            redis.call("HSET", key.recurring_call(name), "due", call.text(latest_us))
        end
        if at_us > latest_us and at_us ~= math.huge then -- else it is suspended
            redis.call("ZADD", key.recurring, call.text(latest_us), name)
        end
    end
    local has_more = #found == 2 * protocol.MOST_RECHECKED
    if has_more then -- no call has moved to a later position
        redis.call("HSET", key.clock, "recheck", from + protocol.MOST_RECHECKED)
    elseif from > 0 then
        redis.call("HDEL", key.clock, "recheck")
    end
    return has_more
end
