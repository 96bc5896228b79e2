-- claims: a job held by a worker's slot, with a fencing number that grows at each delivery.
-- @include base/clock.lua
-- @include placing/free_slots.lua
-- @include jobs/find_by.lua
local claims = {}

-- RETURNS what a worker reads of a claimed job: a line of facts, then the message as kombu sent it, which is read
-- unless it is given: whoever only publishes needs no right to read messages. `expires`: false for never.
function claims.payload(id, fence, type, deliveries, enqueued, expires, message)
    message = message or redis.call("GET", key.message(id)) or ""
    local facts = id .. " " .. fence .. " " .. type .. " " .. deliveries .. " " .. enqueued
    local is_time = expires and string.find(expires, "^%d+$")
    return (is_time and facts .. " " .. expires or facts) .. "\n" .. message
end

-- Gives a job to `worker`, whose slots `view` sees. RETURNS the fencing number; how often the job was delivered before,
-- and when it expires: of one that was never claimed, and does not expire, that is known without a look; and whether it
-- had a row. nil for one that has expired: its number is nobody's, and it takes no slot.
function claims.grant(id, worker, view)
    local fence = tostring(redis.call("INCR", key.fence))
    local new_fields = redis.call("HSET", key.job(id), "state", "claimed", "worker", worker, "fence", fence,
        "claimed", clock.now)
    local deliveries, expires = 0, false
    if new_fields < 3 then -- "claimed" stays when a job goes back, and one that expires has it from the start
        local row = redis.call("HMGET", key.job(id), "deliveries", "expires")
        deliveries, expires = row[1] or 0, row[2]
        if expires and (tonumber(expires) or math.huge) <= clock.now_us then
            redis.call("HDEL", key.job(id), "worker", "fence")
            return nil
        end
    end
    view.take(worker) -- of the slots that are left now
    redis.call("HSET", key.claims(worker), id, fence)
    return fence, deliveries, expires, new_fields <= 3
end

-- What explains how long a slot is taken by a job of this type: each new one counts for an eighth. Of short ones,
-- which are many, one in eight is looked at.
local function note_duration(type, duration_us, fence)
    if duration_us < protocol.SHORT_US and fence % protocol.SAMPLED_ONE_IN ~= 0 then
        return
    end
    local average_us = tonumber(redis.call("HGET", key.durations, type))
    if not average_us and redis.call("HEXISTS", key.capacity, type) == 0 then
        return -- nobody serves it any more: what was known of it went with the last one who did
    end
    average_us = average_us or duration_us
    average_us = average_us + math.floor((duration_us - average_us) / protocol.AVERAGED_OVER)
    redis.call("HSET", key.durations, type, clock.text(average_us))
end

-- Takes a claim that has ended from its worker, if it is its own (`held`). The caller settles the worker's slots.
-- RETURNS what is known of the job, or nil.
function claims.take_back(worker, id, fence)
    local row = redis.call("HMGET", key.job(id), "fence", "acked", "type", "claimed", "task", "stamps", "expires")
    local is_own = not row[1] or row[1] == fence -- without one the server has lost the job
    if is_own and redis.call("HDEL", key.claims(worker), id) == 1 then
        return {
            acked = row[2] == "1", type = row[3], claimed = row[4], task = row[5], stamps = row[6], expires = row[7],
        }
    end
    return nil
end

-- A job that was taken back has ended: only what is known of it (`known`) is kept for a while, and its `state`. `why`:
-- in words, "" if nothing is said.
function claims.finish(id, fence, known, state, why)
    redis.call("UNLINK", key.message(id))
    if not known.claimed then
        redis.call("UNLINK", key.job(id)) -- the server has lost the job: an ack may be left of it
        return
    end
    if known.type and string.find(known.claimed, "^%d+$") then
        note_duration(known.type, math.max(0, clock.now_us - tonumber(known.claimed)), tonumber(fence))
    end
    traces.forget(id, known.task, known.stamps, known.expires, protocol.ENDED_KEPT_S)
    redis.call("HSET", key.job(id), "state", state, "ended", clock.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)
end
