-- ingest: a list of stock Celery -> pending, or scheduled. Moves a message as publish does, if it is the next one in
-- its list: then nobody else has it, and a repeated call moves nothing twice.
-- RETURNS {state, unfilled, served}, as publish does; state -1: another message is next, or none; 4: the message is a
-- dead letter, since nobody can read it or a field is refused; 5: it has no id or type, and so cannot be a dead letter.
-- At -1, 0 and 5 nothing has changed.
-- Cost: that of publish for one job.
function functions.ingest(ARGV)
    local list = ARGV[1] -- kombu's own key, of a queue or of one of its priority steps
    local readable = ARGV[2] == "1" -- if not, only type, id and the bytes of the message are known
    -- ARGV[3..]: the fields of the job, in the order of rules/job_fields; its message is the bytes in the list
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
