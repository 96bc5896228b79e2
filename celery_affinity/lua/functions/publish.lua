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

-- ingest: list of stock Celery -> pending, or scheduled. Moves the next message of the list, like publish. A message
-- that is still the next one has not been taken by another process, so a repeated invocation moves nothing twice.
--
-- Returns {state, unfilled, served} as in publish, with three more states:
--   -1: the list is empty or has another next message.
--   4: the message is dead-lettered, because it is unreadable or has an invalid field.
--   5: the message has no valid id or type, and therefore cannot be dead-lettered.
-- For the states -1, 0 and 5, nothing has changed.
-- Cost: the cost of publish for one job.
function functions.ingest(ARGV)
    local list = ARGV[1] -- kombu's key of a queue, or of one of its priority steps
    local readable = ARGV[2] == "1" -- if false, only type, id and message bytes are available
    -- ARGV[3..]: the fields of the job, in the order of schema/job_record; its message is the list's item
    local job = job_fields.at(ARGV, 3)

    if redis.call("LINDEX", list, -1) ~= job.message then
        return { protocol.IS_NOT_NEXT, "", 1 }
    end
    if redis.call("EXISTS", key.job(job.id)) == 1 then
        return { protocol.IS_KNOWN, "", 1 }
    end
    local bad = validate.first_invalid_field(job)
    if bad == "id" or bad == "type" then
        return { protocol.IS_REFUSED, "", bad }
    end
    redis.call("RPOP", list)
    if bad or not readable then
        local known = job_fields.bare(job)
        enqueue.write_hash(key.job(known.id), known, lanes.name(known.mode, known.priority), call.now, "pending")
        redis.call("SET", key.message(known.id), known.message)
        requeue.dead_letter(job.id, "unreadable", settings_in_force.read())
        return { protocol.IS_UNREADABLE, "", 1 }
    end
    return enqueue.only(job)
end
