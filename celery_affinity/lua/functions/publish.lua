-- publish: client -> pending, or scheduled if the job is due later. Pending jobs are placed immediately on free slots.
-- A job with an existing id changes nothing: an invocation repeated after a lost reply publishes once.
--
-- Returns {state, unfilled, served, state, served, ...}; additional jobs add state and served.
--   state 0: the id exists already.
--   state 1: pending or placed.
--   state 2: scheduled.
--   state 3: revoked before, expired or dropped.
--   state 5: rejected because of an invalid field; nothing is written for the job. `served` is the name of the field.
--   state 6: merged with other waiting jobs.
--   state 7: the limit on pending jobs of a type rejects all jobs. `served` contains the type, its number of waiting
--     jobs, and the limit.
--   unfilled: see `fill`.
--   served: 0 if the job waits and no live worker serves its type.
-- Cost: O(log n) in pending jobs, per job. A full server rejects the invocation before its first write.

-- Publishes `job`, number `nth` of the invocation, counted from 0. The jobs are 1 µs apart, which preserves their
-- order. Adds the job's type to `types` if the type must be filled, and the job's message to `fresh`. Returns state and
-- served.
local function add(job, nth, types, fresh)
    local invalid = validate.first_invalid_field(job)
    if invalid then
        return protocol.IS_REFUSED, invalid
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
    if state == protocol.IS_PENDING or state == protocol.IS_MERGED then -- an invocation may repeat a job
        fresh[job.id] = job.message
    end
    if state == protocol.IS_MERGED then
        local batch = redis.call("HGET", key.job(job.id), "into")
        local first = redis.call("ZRANGE", key.callers(batch), 0, 0)[1]
        fresh[batch] = fresh[first] -- if this invocation published the first call
    end
    return state, served
end

function functions.publish(ARGV)
    -- ARGV[1..]: the fields of each job, in the order of schema/job_record; the last fields of a single job can be
    -- missing. Limits on pending jobs can follow as the last value.
    local length, count = #ARGV, job_fields.COUNT
    if length <= count and length >= job_fields.LEAST then
        return enqueue.only(job_fields.alone(ARGV))
    end
    local bounds = length > count and length % count == 1 and ARGV[length] -- type=most/full, separated by spaces
    if length % count ~= 0 and not bounds then
        return redis.error_reply("ERR each job has " .. count .. " arguments, got: " .. length .. " in all")
    end
    if bounds then
        local refusal = hooks.refuses(bounds, ARGV)
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
