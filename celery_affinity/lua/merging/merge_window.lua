-- merge_window: calls of a task can wait for other calls that merge with them (`wait`, `at_most`). A call or its batch
-- becomes pending when no other call has joined for `wait`, or when it is `at_most` old. Until then it is collecting:
-- it is scheduled, and field `patient` of its hash has the end of the window. The rules of the first call apply. A tick
-- ends the window.

-- Returns the end of the merge window if a call joins now, or nil if the rules have no merge window.
local function end_of_window(rules, enqueued)
    local wait_us, at_most_us = rules_codec.wait(rules)
    return wait_us and math.min(call.now_us + wait_us, tonumber(enqueued) + at_most_us)
end

-- Schedules job `id` until `time` in µs.
local function schedule(id, time)
    local end_us = call.text(time)
    redis.call("HSET", key.job(id), "patient", end_us)
    redis.call("ZADD", key.scheduled, end_us, id)
end

-- Returns the end in µs of the merge window of a call that joins nothing. Returns nil if it does not wait: it is
-- on-demand (a user waits for its result), it has waited long enough, or it fills a run.
function merge_window.of_first(lane, enqueued, rules, bytes)
    local time = end_of_window(rules, enqueued)
    local _, max_bytes = rules_codec.bounds(rules)
    local waits = time and time > call.now_us and not lanes.is_on_demand(lane) and bytes < max_bytes
    return waits and time or nil
end

-- Begins the merge window of call `id`, which joined nothing, if it has one. Returns true if it has begun.
function merge_window.begin(id, lane, enqueued, rules, bytes)
    local time = merge_window.of_first(lane, enqueued, rules, bytes)
    if not time then
        return false
    end
    redis.call("HSET", key.job(id), "state", "scheduled")
    schedule(id, time)
    workers.tick_in_time(time - call.now_us, key.scheduled, id)
    return true
end

-- Transfers the merge window that ends at `time` from the first call to `batch`.
function merge_window.hand_over(first, batch, time)
    redis.call("HDEL", key.job(first), "patient")
    redis.call("ZREM", key.scheduled, first)
    schedule(batch, time)
end

-- Ends the merge window of job `id`, otherwise open until `time`: the immediate next tick queues the job.
function merge_window.finish(id, time)
    if time > protocol.AT_ONCE_US then -- a time in 1970: it stays in the past when the clock is set back
        schedule(id, protocol.AT_ONCE_US)
        workers.have_one_tick()
    end
end

-- Restarts the merge window of `batch`, which ends at `time`, after a call has joined. The window ends instead if the
-- batch is full or on-demand. `row`: current fields of the batch.
function merge_window.go_on(batch, time, row)
    if row.is_full or lanes.is_on_demand(row.lane) then
        merge_window.finish(batch, time)
    elseif time > call.now_us then -- otherwise it is due, and the next tick queues it
        schedule(batch, end_of_window(row.rules, row.enqueued) or call.now_us)
    end
end
