-- recurring: what puts a recurring call off, and what does so no more. A call is made when none that matches came in
-- time.

-- Has a recurring call be due at another time. `is_suspended`: what its row says.
function recurring.set_due(name, due_us, is_suspended)
    local due = call.text(due_us)
    redis.call("HSET", key.recurring_call(name), "due", due)
    if not is_suspended then
        redis.call("ZADD", key.recurring, due, name)
    end
end

-- RETURNS rows of those of `names` that count from `since`: name, interval, whether it is suspended, when it is due.
local function rows_of(names, since)
    local rows = {}
    for name in string.gmatch(names, "%S+") do
        local its_since, stale_us, is_suspended, due =
            unpack(redis.call("HMGET", key.recurring_call(name), "since", "stale", "suspended", "due"))
        if its_since == since and tonumber(stale_us) then
            rows[#rows + 1] = { name = name, stale_us = tonumber(stale_us), is_suspended = is_suspended,
                due_us = tonumber(due) or math.huge }
        end
    end
    return rows
end

-- A job of `task` puts off the recurring calls of `rows`. `fired`: name of the one that the job is a firing of.
local function reset(rows, task, fired)
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

-- RETURNS the names of the recurring calls that a job matches, separated by blanks; nil for none: most jobs match none,
-- which costs one command, and those that do not merge none. `type`, `rules`, `name`: what the row of the job says.
function recurring.names_of(type, rules, name)
    local merge_key = type and string.match(rules or "", "^merge=(%S+)")
    return merge_key and redis.call("HGET", key.recurs, type .. " " .. merge_key .. " " .. (name or "")) or nil
end

-- A job of `task` has become pending, and is no retry.
function recurring.match(type, rules, name, task, fired)
    local names = recurring.names_of(type, rules, name)
    if names then
        reset(rows_of(names, "enqueue"), task, fired)
    end
end

-- The run of job `id` has succeeded. `ran`: the job, or the call of a batch. A run that was retried has come to no end
-- yet: then its task has another job.
function recurring.run(type, rules, name, id, ran, task)
    local names = recurring.names_of(type, rules, name)
    local rows = names and rows_of(names, "end") or {}
    if #rows > 0 and ((task or "") == "" or redis.call("GET", key.task(task)) == ran) then
        reset(rows, task, redis.call("HGET", key.job(id), "recurring"))
    end
end

-- A job that was pending since `enqueued` ends without a run: what it put off is due as if no other call had come since
-- then. A time that is past is the next µs: the call may have been made then, or now, and each time has one job.
function recurring.take_back(type, rules, name, enqueued)
    local names = recurring.names_of(type, rules, name)
    for _, row in ipairs(names and rows_of(names, "enqueue") or {}) do
        local due_us = math.max(call.now_us + 1, (tonumber(enqueued) or math.huge) + row.stale_us)
        if due_us < row.due_us then
            recurring.set_due(row.name, due_us, row.is_suspended)
        end
    end
end
