-- enqueue: a message becomes a job: pending, scheduled, or placed immediately on a free slot. Publish, ingest and
-- fire_recurring share this code.

-- Writes the hash `its` of `job`. `rule`: the hooks of a job with rules, or nil. `joined`: the batch that the job
-- joins. `early`: see `due_times.fields`.
function enqueue.write_hash(its, job, lane, enqueued, state, rule, joined, early)
    if rule then
        local fields = rule.fields(job, joined)
        if early then
            for _, value in ipairs({ due_times.row(early) }) do
                fields[#fields + 1] = value
            end
        end
        redis.call("HSET", its, job_fields.row(job, lane, enqueued, state, unpack(fields)))
    elseif early then
        redis.call("HSET", its, job_fields.row(job, lane, enqueued, state, due_times.row(early)))
    else
        redis.call("HSET", its, job_fields.row(job, lane, enqueued, state))
    end
end

-- Returns true if job `id`, whose hash is `its`, was published before. Its task id can differ: after a repeated report
-- of an end, a follow-up call has the same job id, but a new task id. A server function that failed on a corrupt key
-- may have stored only half of a job: a pending job in no lane, or without a hash.
local function is_known(id, its)
    local state, job_type, lane = unpack(redis.call("HMGET", its, "state", "type", "lane"))
    local queue_key = state == "pending" and job_type and lane and not id_suffix.has_key(id)
        and key.lane(job_type, lane)
        or state == "scheduled" and key.scheduled
    return not queue_key or redis.call("ZSCORE", queue_key, id)
end

-- Returns true if a live worker serves `type`, whose first published job was just counted. Otherwise deletes the count.
local function is_first_counted(type)
    local is_served = redis.call("HEXISTS", key.capacity, type) == 1
    if not is_served then
        redis.call("HDEL", key.metrics(type), "published")
    end
    return is_served
end

-- Counts one of several published jobs, if a live worker serves its type. Returns true if one does.
local function is_counted(type)
    local number = call.published and call.published[type]
    if not number and redis.call("HEXISTS", key.capacity, type) == 0 then
        return false
    end
    call.published = call.published or {}
    call.published[type] = (number or 0) + 1
    return true
end

-- Stores `job`, a table of fields, and queues it in the lane of its mode and priority.
--   job.recurring: name of the recurring call, for a job fired by it.
--   enqueued_us: publish time.
--   is_only: true if the invocation publishes no other job.
-- Returns state and served like publish, and two more values. The third value is true if the caller must `place`
-- pending jobs of this type. It is false if others wait: then no free slot fits them, or another invocation is about to
-- place them, unless reserves block them. The fourth value is set for an only job if no other job of its type waits.
-- From this table, `place` adds the job to its lane, or assigns it to a slot without a lane.
function enqueue.insert(job, enqueued_us, is_only)
    local id, type, expires_us = job.id, job.type, job.expires_us
    local delay_us, asked = 0, nil
    if job.times ~= "0" then
        delay_us, asked = due_times.split(job.times)
    end
    local its = key.job(id)
    if redis.call("EXISTS", its) == 1 and is_known(id, its) then
        return protocol.IS_KNOWN, 1, false
    end
    -- Before all other writes, because a full server can reject only the first write: the message, and the job as the
    -- only one of its task, if neither key exists. Otherwise the task has other jobs, or is revoked
    -- (`job_index.revoke`).
    local task, is_revoked = job.task_id, false
    local is_first_of_task = task ~= "" and redis.call("MSETNX", key.message(id), job.message, key.task(task), id) == 1
    if not is_first_of_task then
        is_revoked = job_index.is_revoked(job.task_id)
        redis.call("SET", key.message(id), job.message)
    end

    local enqueued = call.text(delay_us > 0 and enqueued_us + delay_us or enqueued_us)
    local lane = lanes.name(job.mode, job.priority)
    local is_expired = expires_us ~= "" and tonumber(expires_us) <= 0
    local rule, joined = hooks.of_new(job), nil
    local waits, stretches, heads, has_type_rules = delay_us <= 0 and not (is_expired or is_revoked), false, nil, nil
    if waits then
        joined = rule and rule.joins(job)
        local found = redis.call("HMGET", key.heads, type, "!")
        heads, has_type_rules = found[1], found[2]
        if has_type_rules then
            local kinds, _, has_stretch = hooks.read_word(has_type_rules)
            has_type_rules, stretches = kinds, has_stretch
        elseif asked then
            hooks.read_word(nil)
        elseif rule then
            call.shares = "off"
        end
    end
    local initial_state = joined and "merged" or delay_us > 0 and "scheduled" or "pending"
    local early
    if stretches or asked then
        early = due_times.fields(type, job.task_name, asked, enqueued_us + math.max(0, delay_us), waits)
    end
    enqueue.write_hash(its, job, lane, enqueued, initial_state, rule, joined, early)
    local is_again = false
    if not is_first_of_task or expires_us ~= "" or job.stamps ~= "" then
        local expires = expires_us ~= "" and call.text(call.now_us + tonumber(expires_us)) or ""
        is_again = job_index.add(id, job.task_id, job.stamps, expires, is_first_of_task)
    end
    if is_expired or is_revoked then
        ends.record(id, is_revoked and "revoked" or "expired")
        return protocol.HAS_ENDED, 1, false
    end

    if is_again and rule then
        rule.is_retried(job)
    end
    local is_served
    if is_only then -- only a served type has the field (`workers.note_served`)
        is_served = redis.call("HINCRBY", key.metrics(type), "published", "1") > 1 or is_first_counted(type)
    else
        is_served = is_counted(type)
    end
    if early and early.own_due and not joined then
        redis.call("ZADD", key.due_times, early.own_due, id)
    end
    if delay_us > 0 then
        redis.call("HSET", its, "published", call.text(enqueued_us))
        redis.call("ZADD", key.scheduled, enqueued, id)
        workers.tick_in_time(delay_us, key.scheduled, id)
        return protocol.IS_SCHEDULED, 1, false
    end
    local rank, alone = early and call.text(enqueued_us - early.head_us) or enqueued, nil
    local waits_as = rule and rule.enters(job, lane, enqueued, joined, is_again, early or {})
    if waits_as == "patient" then
        return protocol.IS_SCHEDULED, 1, false
    elseif waits_as == "merged" then
        heads = heads or "" -- other jobs wait
    elseif rule and id_suffix.has_key(id) then
        hooks.wait(id, type, lane, rank, job, heads or "")
    elseif heads or has_type_rules or not is_only or call.shares == "on" then
        if rule or call.shares == "on" then
            hooks.enters_lane(id, type, lane, rank)
        end
        lanes.add(id, type, lane, rank, heads or "")
    else
        alone = { id = id, type = type, lane = lane, enqueued = rank, has_rules = rule ~= nil }
    end
    is_served = is_served or redis.call("HGET", key.capacity, protocol.WITHDRAWN .. type)
    local state = waits_as == "merged" and protocol.IS_MERGED or protocol.IS_PENDING
    if not is_served then
        redis.call("HINCRBY", key.counters, "unserved", 1)
        return state, 0, false, alone
    end
    return state, 1, not heads or has_type_rules == protocol.HAS_RESERVES, alone
end

-- Places pending jobs of `types_to_fill` with `fill`. `messages`: job id -> message, for the jobs just written.
-- `alone`: fourth value of `insert`. Returns the unfilled types, like `fill`. Most publishes find no free slot.
function enqueue.place(types_to_fill, messages, alone)
    local free_slots_found, unfilled = 0, ""
    if call.published then
        for type, number in pairs(call.published) do
            redis.call("HINCRBY", key.metrics(type), "published", number)
        end
    end
    if next(call.to_fill) then
        types_to_fill, unfilled = hooks.add_types_to_fill(types_to_fill) -- a job can set a higher limit
    end
    for _, type in ipairs(types_to_fill) do
        free_slots_found = free_slots_found + free_slots.free_for(type)
    end
    if free_slots_found > 0 then
        local view = slot_choice.view()
        local waiting = alone and queue_heads.of_single(alone)
            or queue_heads.of(types_to_fill, view, settings_in_force.read())
        return fill.from(waiting, "", view, messages)[1] .. unfilled
    end
    if alone then
        if alone.has_rules then
            hooks.enters_lane(alone.id, alone.type, alone.lane, alone.enqueued)
        end
        lanes.add(alone.id, alone.type, alone.lane, alone.enqueued, "")
    end
    return unfilled
end

-- Stores and places `job`, the only job of the invocation. Returns the reply of `publish`.
function enqueue.insert_single(job)
    local bad = validate.first_invalid_field(job)
    if bad then
        return { protocol.IS_REFUSED, "", bad }
    end
    local state, served, is_first, alone = enqueue.insert(job, call.now_us, true)
    if is_first or alone or next(call.to_fill) then
        return { state, enqueue.place(is_first and { job.type } or {}, { [job.id] = job.message }, alone), served }
    end
    return { state, "", served } -- nothing to place, the common case
end
