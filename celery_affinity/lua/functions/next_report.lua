-- next_report: untold -> a process that tells the caller how the job ended, and says so (`told`). Until it does, the end
-- is announced again, to any process, each time after a pause twice as long: one that tells an end may hang.
-- RETURNS {id, how, type, task id, task name, deliveries, µs since the job ended, for anyone, message}; {id} of a job
-- whose row cannot be read; {} if no end is to be told. how: "revoked", "expired", "dropped", or why the job is dead;
-- of a batch also "shared": its run has ended, and some calls do not know their result (`callers`). for anyone: 1 if an
-- app that does not know the task is to tell the end as well. message: "" if it is gone, nil if it is so large that
-- the process reads it by itself.
-- Cost: at most MOST_ENDS_LOOKED_AT jobs, and a message of LONGEST_ANNOUNCED bytes.

local function message_of(id)
    local length = redis.pcall("STRLEN", key.message(id))
    if type(length) ~= "number" then
        return "" -- somebody overwrote the message
    end
    return length <= protocol.LONGEST_ANNOUNCED and (redis.call("GET", key.message(id)) or "")
end

-- RETURNS how a job ended, as the reply says it.
local function how_it_ended(id, state, reason, why)
    if state == "dead" and reason then
        return reason
    elseif state == "revoked" and string.find(why or "", protocol.DROPPED, 1, true) == 1 then
        return protocol.DROPPED
    end
    return hooks.of(id).STANDS_FOR_CALLS and "shared" or state
end

function functions.next_report(ARGV)
    local again_us = tonumber(ARGV[1]) -- the first pause
    local app = ARGV[2] -- the app that asks: an end that it has left to others it gets again only when it is for anyone
    -- ARGV[3..]: jobs whose ends the process is still about to tell

    local is_telling = {}
    for i = 3, #ARGV do
        is_telling[ARGV[i]] = true
    end
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.untold, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_ENDS_LOOKED_AT)) do
        local row = redis.pcall("HMGET", key.job(id),
            "state", "reason", "type", "task", "name", "deliveries", "ended", "left", "tries", "why")
        local state, reason, type, task, name, deliveries, ended, left, tries_so_far, why = unpack(row)
        local is_id = corrupt.is_word(id)
        local ended_us = is_id and not row.err and tonumber(ended)
        if not is_id then
            corrupt.remove(key.untold, id)
        elseif not ended_us then
            redis.call("ZADD", key.untold, call.text(call.now_us + again_us), id)
            return { id }
        end
        local since_us = math.max(0, call.now_us - (ended_us or 0))
        local tries = tonumber(tries_so_far) or 0
        local is_for_anyone = since_us >= (tries > 0 and protocol.OTHERS_WHO_TRY_HAVE_US or protocol.OTHERS_HAVE_US)
        if ended_us and not is_telling[id] and (is_for_anyone or not texts.has_word(left, app)) then
            local pause_us = math.min(again_us * 2 ^ tries, protocol.LONGEST_PAUSE_US)
            redis.call("ZADD", key.untold, call.text(call.now_us + pause_us), id)
            redis.call("HSET", key.job(id), "tries", tries + 1)
            local how, for_anyone = how_it_ended(id, state, reason, why), is_for_anyone and 1 or 0
            -- A call that merged was delivered with its batch, if at all.
            return { id, how, type, task, name, deliveries or "0", call.text(since_us), for_anyone, message_of(id) }
        end
    end
    return {}
end
