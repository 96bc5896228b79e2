-- told: untold -> nowhere. The callers of these jobs know how the jobs ended; or their ends are left to another app, or
-- nobody is to tell them.
-- RETURNS the number of these ends that were untold until now. A batch of which calls do not know stays: see `shared`.
-- Of a batch that was deleted, some of the calls that are left go.
-- Cost: at most MOST_MOVES jobs in one call, by the caller, and MOST_SHARED calls of batches.
function arrows.told(ARGV)
    local how = ARGV[1] -- "told"; "left": `app` does not know the tasks; "aside": the rows cannot be read
    local app = ARGV[2] -- name of the app that leaves ends to others
    -- ARGV[3..]: job ids

    local function leave(id)
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

    -- Leaves what stands under the id as it is: it may be no job at all. The calls of a batch are told that their
    -- result is lost.
    local function set_aside(id)
        if marks.of(id) == protocol.BATCH and batches.make_again(id) then
            redis.call("HSET", key.job(id), "state", "done", "ended", call.now)
            return
        end
        redis.call("ZREM", key.untold, id)
    end

    local report = ({ told = come_back.told, left = leave, aside = set_aside })[how]
    local untold = 0
    local most = math.max(1, math.floor(protocol.MOST_SHARED / math.max(1, #ARGV - 2))) -- calls of a batch that goes
    for i = 3, #ARGV do
        local id = ARGV[i]
        local is_half_told = how == "told" and marks.of(id) == protocol.BATCH
            and redis.call("EXISTS", key.callers(id)) == 1
        if redis.call("ZSCORE", key.untold, ARGV[i]) and not is_half_told then
            untold = untold + 1
            report(ARGV[i], most)
        end
    end
    return untold
end
