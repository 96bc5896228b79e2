-- fire_recurring: due recurring call -> pending, or scheduled. Publishes the call's job, and sets the next due time.
-- Any number of processes can try: each due time has one job.
--
-- Returns {state, unfilled, served} as in publish, or {} if the call is no longer due and nothing has changed.
-- Cost: the cost of publish for one job. A full server can reject the first write, before any change.
function functions.fire_recurring(ARGV)
    local name = ARGV[1]
    local due = ARGV[2] -- from `due_recurring`; "" fires the call for an operator, regardless of its due time
    -- ARGV[3..]: the fields of the job, in the order of schema/job_record
    local job = job_fields.at(ARGV, 3)

    local its_due, stale_us, is_suspended =
        unpack(redis.call("HMGET", key.recurring_call(name), "due", "stale", "suspended"))
    if not tonumber(stale_us) or (due ~= "" and (due ~= its_due or is_suspended)) then
        return {}
    elseif due ~= "" and (tonumber(its_due) or 0) > call.now_us then
        return {} -- the clock was set back
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
