-- fire_recurring: a recurring call that is due -> pending, or scheduled: publishes its job as publish does, and sets the time at
-- which the call is due next. Any number of processes may try: each time at which a call is due has one job.
-- RETURNS {state, unfilled, served}, as publish does; {} if the call is not due any more, and nothing has changed.
-- Cost: that of publish for one job. A full server may refuse the first write, before anything is written.
function functions.fire_recurring(ARGV)
    local name = ARGV[1]
    local due = ARGV[2] -- as `due` returned it; "" for a person who asks: whenever the call is due
    -- ARGV[3..]: the fields of the job, in the order of rules/job_fields
    local job = job_fields.at(ARGV, 3)

    local its_due, stale_us, is_suspended =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale", "suspended"))
    if not tonumber(stale_us) or (due ~= "" and (due ~= its_due or is_suspended)) then
        return {}
    elseif due ~= "" and (tonumber(its_due) or 0) > call.now_us then
        return {} -- the clock was set back since
    end
    job.recurring = name
    local reply = enqueue.only(job)
    local state = reply[1]
    if state == protocol.IS_REFUSED then
        return reply
    elseif state ~= protocol.IS_KNOWN then
        redis.call("HSET", key.job(job.id), "recurring", name)
        redis.call("HSET", key.recurring_call(name), "made", job.id)
        redis.call("HINCRBY", key.counters, "recurring_fired", 1)
    end
    recurring.set_due(name, call.now_us + tonumber(stale_us), is_suspended)
    return reply
end
