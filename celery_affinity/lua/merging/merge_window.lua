-- merge_window: a task may have its calls wait for others that merge with them (`wait`, `at_most`): a call, or its batch,
-- becomes pending once no further call has joined for `wait`, or when it is `at_most` old. Until then it is patient:
-- scheduled, with that time in field `patient` of its row. The rules of the first call count; a tick ends the patience.

-- RETURNS until when what was `enqueued` then is patient if a call joins it now; nil if its rules say no wait.
local function until_when(rules, enqueued)
    local wait_us, at_most_us = rules_codec.wait(rules)
    return wait_us and math.min(call.now_us + wait_us, tonumber(enqueued) + at_most_us)
end

-- Has job `id` wait until `time`, µs.
local function wait(id, time)
    local text = call.text(time)
    redis.call("HSET", key.job(id), "patient", text)
    redis.call("ZADD", key.scheduled, text, id)
end

-- RETURNS the time, µs, until which a call that finds nothing to join waits for others; nil if it does not wait: a user
-- waits for its result (on demand), it has waited for long enough, or it fills a run alone.
function merge_window.of_first(lane, enqueued, rules, bytes)
    local time = until_when(rules, enqueued)
    local _, most_bytes = rules_codec.bounds(rules)
    local waits = time and time > call.now_us and not lanes.is_on_demand(lane) and bytes < most_bytes
    return waits and time or nil
end

-- Has call `id`, which finds nothing to join, be patient if it is to be. RETURNS whether it is.
function merge_window.begin(id, lane, enqueued, rules, bytes)
    local time = merge_window.of_first(lane, enqueued, rules, bytes)
    if not time then
        return false
    end
    redis.call("HSET", key.job(id), "state", "scheduled")
    wait(id, time)
    workers.tick_in_time(time - call.now_us, key.scheduled, id)
    return true
end

-- Has `batch` be patient until `time` instead of its first call.
function merge_window.hand_over(first, batch, time)
    redis.call("HDEL", key.job(first), "patient")
    redis.call("ZREM", key.scheduled, first)
    wait(batch, time)
end

-- Ends the patience of job `id`, which was until `time`: the next tick, now, has it pending.
function merge_window.finish(id, time)
    if time > protocol.AT_ONCE_US then -- a time in 1970: it stays over when the clock is set back
        wait(id, protocol.AT_ONCE_US)
        workers.have_one_tick()
    end
end

-- A call has joined `batch`, which is patient until `time`: the wait begins anew, unless the batch is full or somebody
-- waits for it. `row`: what is known of the batch now.
function merge_window.go_on(batch, time, row)
    if row.is_full or lanes.is_on_demand(row.lane) then
        merge_window.finish(batch, time)
    elseif time > call.now_us then -- else it is due, and the next tick sees it
        wait(batch, until_when(row.rules, row.enqueued) or call.now_us)
    end
end
