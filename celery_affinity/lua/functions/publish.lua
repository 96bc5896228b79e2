-- publish: client -> pending, or scheduled if the job's time is still to come. Places the jobs at once if slots are
-- free. A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, unfilled, served, state, served, ...}; state 0: known already, 1: pending or placed, 2: scheduled, 3:
-- revoked before, expired, or dropped, 5: refused, and nothing is written of the job, 6: merged with others that wait,
-- 7: refused with all others of the call, since as many jobs wait as a type may have. unfilled: as `fill` returns it.
-- served 0: the job waits, and no live worker serves its type; of a refused job served is the name of the refused
-- field; for 7, the type, how many of its jobs wait, and how many may. Each further job adds state and served.
-- Cost: O(log n) in pending jobs, for each job. A full server refuses the call before it begins.

-- Adds `job`, the `nth` of the call, from 0: the jobs of one call are 1 µs apart, so that they stay in order. Adds its
-- type to `types` if these are to be filled, and its message to `fresh`. RETURNS state and served.
local function add(job, nth, types, fresh)
    local bad = validate.first_invalid_field(job)
    if bad then
        return protocol.IS_REFUSED, bad
    end
    local state, served, is_first = enqueue.insert(job, call.now_us + nth, false)
    if call.bounds then
        local has_dropped
        state, has_dropped = hooks.enforce_max_pending(job, state)
        is_first = is_first or has_dropped
    end
    if is_first then
        types[#types + 1] = job.type
    end
    if state == protocol.IS_PENDING or state == protocol.IS_MERGED then -- a call may repeat a job
        fresh[job.id] = job.message
    end
    if state == protocol.IS_MERGED then
        local batch = redis.call("HGET", key.job(job.id), "into")
        local first = redis.call("ZRANGE", key.callers(batch), 0, 0)[1]
        fresh[batch] = fresh[first] -- if this call published it
    end
    return state, served
end

function functions.publish(ARGV)
    -- ARGV[1..]: the fields of each job, in the order of rules/job_fields; of a job alone perhaps not the last ones;
    -- then, if there are any, the bounds of types
    local length, count = #ARGV, job_fields.COUNT
    if length <= count and length >= job_fields.LEAST then
        return enqueue.only(job_fields.alone(ARGV))
    end
    local bounded = length > count and length % count == 1 and ARGV[length] -- type=most/full, separated by blanks
    if length % count ~= 0 and not bounded then
        return redis.error_reply("ERR each job has " .. count .. " arguments, got: " .. length .. " in all")
    end
    if bounded then
        local refusal = hooks.refuses(bounded, ARGV)
        if refusal then
            return refusal
        end
        length = length - 1
    end
    local reply, types, fresh = { nil, "" }, {}, {}
    for first = 1, length, count do
        local nth = (first - 1) / count
        local state, served = add(job_fields.at(ARGV, first), nth, types, fresh)
        reply[nth > 0 and 2 * nth + 2 or 1], reply[2 * nth + 3] = state, served
    end
    reply[2] = enqueue.place(types, fresh)
    return reply
end
