-- revoke: pending or scheduled -> unreported. Waiting jobs end immediately, without a slot. Jobs published later under
-- these task ids end, too. The worker stops a claimed job; if the job is requeued instead, it ends then.
--
-- Returns {revoked, left, after}.
--   revoked: number of jobs that ended.
--   left: number of names, the last ones, that the caller must pass to the next invocation.
--   after: argument of the next invocation.
-- Cost: at most MOST_MOVES jobs per invocation, and as many names, limited by the caller.

-- Returns the same values as `job_index.jobs_of_task`, for a stamp. Removes these jobs from the stamp's index, so that
-- the next invocation gets other jobs.
local function jobs_of_stamp(stamp, _, most)
    local ids = flat.members(redis.call("ZPOPMIN", key.stamped(stamp), most))
    return ids, #ids == most
end

-- Ends the waiting jobs of the names in `arguments`, from the fourth argument. Returns the reply.
local function end_all(by, after, arguments)
    local next_jobs = by == "task" and job_index.jobs_of_task or jobs_of_stamp
    local revoked, processed = 0, 0
    for i = 4, #arguments do
        if processed == protocol.MOST_MOVES then
            return { revoked, #arguments - i + 1, 0 }
        end
        local ids, has_more, last =
            next_jobs(arguments[i], i == 4 and after or 0, protocol.MOST_MOVES - processed)
        for _, id in ipairs(ids) do
            processed = processed + 1
            revoked = revoked + (ends.waiting(id, "revoked") and 1 or 0)
        end
        if has_more then
            return { revoked, #arguments - i + 1, tonumber(last or 0) }
        end
    end
    return { revoked, 0, 0 }
end

function functions.revoke(ARGV)
    local by = ARGV[1] -- kind of the names: "task" for task ids, "stamp" for stamps ("name:value"), encoded
    local keep_s = ARGV[2] -- seconds for which these names stay revoked
    local after = ARGV[3] -- number of the last processed job of the first name, or 0
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
