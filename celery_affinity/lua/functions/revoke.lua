-- revoke: pending or scheduled -> untold. Jobs that wait end at once, without a slot; jobs that are published under
-- these task ids from now on end, too. A claimed job is its worker's to stop; if it comes back, it ends then.
-- RETURNS {revoked, left, after}; revoked: number of jobs that ended. left: number of names, the last ones, with which
-- the caller is to go on; after: the argument of that call.
-- Cost: at most MOST_MOVES jobs in one call, and as many names, by the caller.

-- RETURNS what `job_index.jobs_of_task` does, for a stamp; and removes these jobs from the stamp's index, so that a
-- further call gets to the others.
local function jobs_of_stamp(stamp, _, most)
    local ids = flat.members(redis.call("ZPOPMIN", key.stamped(stamp), most))
    return ids, #ids == most
end

-- Ends the waiting jobs of the names in `arguments`, from the fourth on. RETURNS the reply.
local function end_all(by, after, arguments)
    local some_of = by == "task" and job_index.jobs_of_task or jobs_of_stamp
    local revoked, looked_at = 0, 0
    for i = 4, #arguments do
        if looked_at == protocol.MOST_MOVES then
            return { revoked, #arguments - i + 1, 0 }
        end
        local ids, goes_on, last =
            some_of(arguments[i], i == 4 and after or 0, protocol.MOST_MOVES - looked_at)
        for _, id in ipairs(ids) do
            looked_at = looked_at + 1
            revoked = revoked + (ends.waiting(id, "revoked") and 1 or 0)
        end
        if goes_on then
            return { revoked, #arguments - i + 1, tonumber(last or 0) }
        end
    end
    return { revoked, 0, 0 }
end

function functions.revoke(ARGV)
    local by = ARGV[1] -- what the names are: "task" for task ids, "stamp" for stamps ("name:value"), encoded
    local keep_s = ARGV[2] -- seconds for which these names stay revoked
    local after = ARGV[3] -- number of the last job of the first name that an earlier call got to; 0: none
    -- ARGV[4..]: names

    for i = 4, #ARGV do
        if by == "task" then
            job_index.revoke(ARGV[i], keep_s)
        else
            redis.call("SET", key.revoked_stamp(ARGV[i]), call.now, "EX", keep_s)
        end
    end
    local reply = end_all(by, after, ARGV)
    hooks.leave_to_tick()
    return reply
end
