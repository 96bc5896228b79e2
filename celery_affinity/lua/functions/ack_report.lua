-- ack_report: untold -> nowhere, for jobs whose callers know how they ended; or a process leaves the ends to another app, or
-- sets them aside.
-- RETURNS the number of these ends that were untold until now. A batch of which calls do not know stays: see `shared`.
-- Cost: at most MOST_MOVES jobs in one call, by the caller; some calls of a batch that was deleted, MOST_SHARED in all.

-- Leaves the end of a job to other apps than `app`, which does not know its task.
local function leave(id, app)
    if redis.call("EXISTS", key.job(id)) == 0 then
        redis.call("ZREM", key.untold, id) -- somebody deleted the job
        return
    end
    local left, tries = unpack(redis.call("HMGET", key.job(id), "left", "tries"))
    redis.call("HSET", key.job(id), "left", left and left .. " " .. app or app)
    redis.call("ZADD", key.untold, call.now, id)
    if tries and redis.call("HINCRBY", key.job(id), "tries", -1) == 0 then
        redis.call("HDEL", key.job(id), "tries") -- this was no try
    end
end

-- Forgets an end that cannot be told. Leaves what is under the id, which may be no job at all. Calls of a batch whose
-- row is made again learn that their result is lost.
local function set_aside(id)
    if hooks.of(id).make_again(id) then
        redis.call("HSET", key.job(id), "state", "done", "ended", call.now)
        return
    end
    redis.call("ZREM", key.untold, id)
end

function functions.ack_report(ARGV)
    local how = ARGV[1] -- "told"; "left": `app` does not know the tasks; "aside": the rows cannot be read
    local app = ARGV[2] -- name of the app that leaves ends to others
    -- ARGV[3..]: job ids

    local untold = 0
    local most = math.max(1, math.floor(protocol.MOST_SHARED / math.max(1, #ARGV - 2))) -- calls of a batch that goes
    for i = 3, #ARGV do
        local id = ARGV[i]
        local is_half_told = how == "told" and hooks.of(id).has_callers(id)
        if redis.call("ZSCORE", key.untold, id) and not is_half_told then
            untold = untold + 1
            if how == "told" then
                requeue.mark_reported(id, most)
            elseif how == "left" then
                leave(id, app)
            else
                set_aside(id)
            end
        end
    end
    return untold
end
