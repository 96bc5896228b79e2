-- next_report: assigns an unreported end to a process, which reports it to the caller and then invokes `ack_report`.
-- Without an ack, any process can get the same end after a delay that doubles each time, because a reporter can hang.
--
-- Returns {id, how, type, task id, task name, deliveries, µs since the end, for anyone, message}, {id} if the job hash
-- is unreadable, or {} if no end must be reported.
--   how: "revoked", "expired", "dropped" or the dead-letter reason. For a batch also "shared": the run has ended, but
--     some calls have not received the result (`batch_calls`).
--   for anyone: 1 if an app that does not define the task should also report the end.
--   message: "" if it was deleted; nil if the process must fetch it because of its size.
-- Cost: at most MOST_ENDS_LOOKED_AT jobs, and a message of up to LONGEST_ANNOUNCED bytes.

local function message_of(id)
    local length = redis.pcall("STRLEN", key.message(id))
    if type(length) ~= "number" then
        return "" -- another client overwrote the message
    end
    return length <= protocol.LONGEST_ANNOUNCED and (redis.call("GET", key.message(id)) or "")
end

-- Returns the value of `how` in the reply.
local function how_it_ended(id, state, reason, why)
    if state == "dead" and reason then
        return reason
    elseif state == "revoked" and string.find(why or "", protocol.DROPPED, 1, true) == 1 then
        return protocol.DROPPED
    end
    return hooks.of(id).STANDS_FOR_CALLS and "shared" or state
end

function functions.next_report(ARGV)
    local again_us = tonumber(ARGV[1]) -- the first delay
    local app = ARGV[2] -- the calling app; it gets ends that it left to other apps only if they are for anyone
    -- ARGV[3..]: ids of jobs whose ends the process has not finished reporting

    local is_reporting = {}
    for i = 3, #ARGV do
        is_reporting[ARGV[i]] = true
    end
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.unreported, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_ENDS_LOOKED_AT)) do
        local fields = redis.pcall("HMGET", key.job(id),
            "state", "reason", "type", "task", "name", "deliveries", "ended", "left", "tries", "why")
        local state, reason, type, task, name, deliveries, ended, left, tries, why = unpack(fields)
        local is_id = corrupt.is_word(id)
        local ended_us = is_id and not fields.err and tonumber(ended)
        if not is_id then
            corrupt.remove(key.unreported, id)
        elseif not ended_us then
            redis.call("ZADD", key.unreported, call.text(call.now_us + again_us), id)
            return { id }
        end
        local age_us = math.max(0, call.now_us - (ended_us or 0))
        local attempts = tonumber(tries) or 0
        local is_for_anyone = age_us >= (attempts > 0 and protocol.OTHERS_WHO_TRY_HAVE_US or protocol.OTHERS_HAVE_US)
        if ended_us and not is_reporting[id] and (is_for_anyone or not texts.has_word(left, app)) then
            local delay_us = math.min(again_us * 2 ^ attempts, protocol.LONGEST_PAUSE_US)
            redis.call("ZADD", key.unreported, call.text(call.now_us + delay_us), id)
            redis.call("HSET", key.job(id), "tries", attempts + 1)
            local how, for_anyone = how_it_ended(id, state, reason, why), is_for_anyone and 1 or 0
            -- A merged call has no own deliveries: its batch was delivered.
            return { id, how, type, task, name, deliveries or "0", call.text(age_us), for_anyone, message_of(id) }
        end
    end
    return {}
end
