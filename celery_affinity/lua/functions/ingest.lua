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
