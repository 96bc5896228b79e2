-- announce: untold -> a process that tells the job's caller how the job ended, and reports that (`told`). An end that
-- is not reported in time is announced to another process, each time after a pause twice as long: a process that tells
-- an end may hang, and so may the others.
-- RETURNS {id, how, type, task id, task name, deliveries, µs since the job ended, for anyone, message}; {id} of a job
-- whose row cannot be read; {} if no end is to be told. how: "revoked", "expired", "dropped", or why the job is dead;
-- of a batch also "shared": its run has ended, and some calls do not know their result (`callers`). for anyone: 1 if an
-- app that does not know the task tells the end as well. message: "" if it is gone, nil if it is so large that the
-- process reads it by itself.
-- Cost: at most MOST_ENDS_LOOKED_AT jobs, and a message of LONGEST_ANNOUNCED bytes.
function arrows.announce(ARGV)
    local again_us = tonumber(ARGV[1]) -- the first pause
    local app = ARGV[2] -- the app that asks: an end that it has left to others it gets again only when it is for anyone
    -- ARGV[3..]: jobs whose ends the process is still about to tell

    local is_telling = {}
    for i = 3, #ARGV do
        is_telling[ARGV[i]] = true
    end

    -- `left`: the apps that have left an end to others, separated by blanks.
    local function is_left(left)
        return string.find(" " .. (left or "") .. " ", " " .. app .. " ", 1, true)
    end

    local function come_again(id, pause_us)
        redis.call("ZADD", key.untold, call.text(call.now_us + pause_us), id)
    end

    local function message_of(id)
        local length = redis.pcall("STRLEN", key.message(id))
        if type(length) ~= "number" then
            return "" -- somebody overwrote the message
        end
        return length <= protocol.LONGEST_ANNOUNCED and (redis.call("GET", key.message(id)) or "")
    end

    for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.untold, "-inf", call.now, "LIMIT", 0,
        protocol.MOST_ENDS_LOOKED_AT)) do
        local row = redis.pcall("HMGET", key.job(id),
            "state", "reason", "type", "task", "name", "deliveries", "ended", "left", "tries", "why")
        local state, reason, type, task, name, deliveries, ended, left, tries_so_far, why = unpack(row)
        local ended_us = not row.err and tonumber(ended)
        if not ended_us then
            come_again(id, again_us)
            return { id }
        end
        local since_us = math.max(0, call.now_us - ended_us)
        local tries = tonumber(tries_so_far) or 0
        local is_for_anyone = since_us >= (tries > 0 and protocol.OTHERS_WHO_TRY_HAVE_US or protocol.OTHERS_HAVE_US)
        if not is_telling[id] and (is_for_anyone or not is_left(left)) then
            come_again(id, math.min(again_us * 2 ^ tries, protocol.LONGEST_PAUSE_US))
            redis.call("HSET", key.job(id), "tries", tries + 1)
            local how = state == "dead" and reason or marks.of(id) == protocol.BATCH and "shared" or state
            local is_dropped = state == "revoked" and string.find(why or "", protocol.DROPPED, 1, true) == 1
            how = is_dropped and protocol.DROPPED or how
            local anyone = is_for_anyone and 1 or 0
            -- A call that merged was delivered with its batch, if at all.
            return { id, how, type, task, name, deliveries or "0", call.text(since_us), anyone, message_of(id) }
        end
    end
    return {}
end
