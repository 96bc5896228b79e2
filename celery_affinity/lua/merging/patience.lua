-- patience: with `wait` a call that others may join waits for them: it is pending once no call has joined for so long.
-- Meanwhile it is scheduled, or its batch is, and field `patient` of its row says until when. The rules of the first
-- call say how long; a tick ends the patience.

-- RETURNS until when what was `enqueued` then waits if a call joins it now; nil if its rules do not have it wait.
local function until_when(rules, enqueued)
    local wait_us, at_most_us = string.match(rules, " wait=(%d+)/(%d+)")
    return wait_us and math.min(call.now_us + tonumber(wait_us), tonumber(enqueued) + tonumber(at_most_us))
end

-- Has job `id` wait until `time`.
local function wait(id, time)
    local text = call.text(time)
    redis.call("HSET", key.job(id), "patient", text)
    redis.call("ZADD", key.scheduled, text, id)
end

-- RETURNS until when a call waits for more that is the first of its kind; nil if it does not: somebody waits for it, or
-- it has waited enough.
function patience.of_first(lane, enqueued, rules, bytes)
    local time = until_when(rules, enqueued)
    local waits = time and time > call.now_us and string.sub(lane, 1, 6) ~= "demand"
        and bytes < tonumber(string.match(rules, " bytes=(%d+)") or protocol.USUAL_MOST_BYTES)
    return waits and time or nil
end

-- Has call `id`, the first of its kind, wait for more. RETURNS whether it does.
function patience.begin(id, lane, enqueued, rules, bytes)
    local time = patience.of_first(lane, enqueued, rules, bytes)
    if not time then
        return false
    end
    redis.call("HSET", key.job(id), "state", "scheduled")
    wait(id, time)
    if time - call.now_us < protocol.TICK_US and redis.call("ZRANGE", key.scheduled, 0, 0)[1] == id then
        workers.have_one_tick() -- the next tick would come too late
    end
    return true
end

-- Has `batch` wait instead of its first call, until `time`.
function patience.hand_over(first, batch, time)
    redis.call("HDEL", key.job(first), "patient")
    redis.call("ZREM", key.scheduled, first)
    wait(batch, time)
end

-- Has job `id` wait for no more calls; it did until `time`. It is due from now on, even if the clock is set back.
function patience.finish(id, time)
    if time > protocol.AT_ONCE_US then
        wait(id, protocol.AT_ONCE_US)
        workers.have_one_tick()
    end
end

-- A call has joined `batch`, which is patient until `time`: has it wait anew, unless it is full or urgent. `row`: what
-- is known of the batch now.
function patience.go_on(batch, time, row)
    if row.is_full or string.sub(row.lane, 1, 6) == "demand" then
        patience.finish(batch, time)
    elseif time > call.now_us then -- else it is due, and the next tick sees it
        -- A tick that comes before a time that moved on learns the new one.
        wait(batch, until_when(row.rules, row.enqueued) or call.now_us)
    end
end
