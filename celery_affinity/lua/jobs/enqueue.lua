-- enqueue: a message becomes a job: pending, or scheduled if its time is still to come; placed at once on a free slot.
-- A reason for the length: publish, ingest and fire share all of it.

-- Writes the row of `job`, whose key is `its`. `rule`: the hooks of a job with rules, else nil. `joined`: what the job
-- joins.
function enqueue.write_hash(its, job, lane, enqueued, state, rule, joined)
    if rule then
        redis.call("HSET", its, job_fields.row(job, lane, enqueued, state, unpack(rule.fields(job, joined))))
    else
        redis.call("HSET", its, job_fields.row(job, lane, enqueued, state))
    end
end

-- Writes the message of a job, and its id as that of the only job of its task, if neither key is there yet. RETURNS
-- whether it has done so: mostly. If not, its task has other jobs, or is revoked (`job_index.revoke`).
local function write_first(id, task, message)
    return task ~= "" and redis.call("MSETNX", key.message(id), message, key.task(task), id) == 1
end

-- RETURNS whether job `id`, whose row is key `its`, is known, perhaps with another task id: what follows from an end
-- that is told twice has the job id that it had, and a new task id. An arrow that failed at a spoiled key may have
-- written one half: a job that waits, but is nowhere, or has no row.
local function is_known(id, its)
    local state, its_type, lane = unpack(redis.call("HMGET", its, "state", "type", "lane"))
    local place = state == "pending" and its_type and lane and not id_suffix.has_key(id) and key.lane(its_type, lane)
        or state == "scheduled" and key.scheduled
    return not place or redis.call("ZSCORE", place, id)
end

-- RETURNS whether a live worker serves `type`, of which one job was counted by now. Counts none if none serves it.
local function is_first_counted(type)
    local is_served = redis.call("HEXISTS", key.capacity, type) == 1
    if not is_served then
        redis.call("HDEL", key.metrics(type), "published")
    end
    return is_served
end

-- Counts a job of a call that publishes several, if a live worker serves its type. RETURNS whether one does.
local function is_counted(type)
    local number = call.published and call.published[type]
    if not number and redis.call("HEXISTS", key.capacity, type) == 0 then
        return false
    end
    call.published = call.published or {}
    call.published[type] = (number or 0) + 1
    return true
end

-- Writes `job`, a table: field -> value, and puts it where it waits: mode and priority name its lane. A firing also has
-- the name of its recurring call (`recurring`). `enqueued_us`: when it was published. `is_only`: whether the call has
-- no other job.
-- RETURNS state and served, as publish does; whether the caller is to `place` pending jobs of this type: not if others
-- wait, since then no free slot fits, or another call is about to place them, unless reserves keep these back. A fourth
-- value, for the only job, if no other of its type waits: the table from which `place` adds it to its lane, or gives it
-- a slot without a lane.
function enqueue.insert(job, enqueued_us, is_only)
    local id, type, expires_us = job.id, job.type, job.expires_us
    local delay_us = job.delay_us == "0" and 0 or tonumber(job.delay_us)
    local its = key.job(id)
    if redis.call("EXISTS", its) == 1 and is_known(id, its) then
        return protocol.IS_KNOWN, 1, false
    end
    -- First: a full server may refuse the first write alone.
    local is_found, is_revoked = write_first(id, job.task_id, job.message), false
    if not is_found then
        is_revoked = job_index.is_revoked(job.task_id)
        redis.call("SET", key.message(id), job.message)
    end

    local due = call.text(delay_us > 0 and enqueued_us + delay_us or enqueued_us)
    local lane = lanes.name(job.mode, job.priority)
    local is_expired = expires_us ~= "" and tonumber(expires_us) <= 0
    local rule, joined = hooks.of_new(job), nil
    if rule and delay_us <= 0 and not (is_expired or is_revoked) then
        joined = rule.joins(job)
    end
    local its_state = joined and "merged" or delay_us > 0 and "scheduled" or "pending"
    enqueue.write_hash(its, job, lane, due, its_state, rule, joined)
    local is_again = false
    if not is_found or expires_us ~= "" or job.stamps ~= "" then
        local expires = expires_us ~= "" and call.text(call.now_us + tonumber(expires_us)) or ""
        is_again = job_index.add(id, job.task_id, job.stamps, expires, is_found)
    end
    if is_expired or is_revoked then
        ends.record(id, is_revoked and "revoked" or "expired")
        return protocol.HAS_ENDED, 1, false
    end

    if is_again and rule then
        rule.is_retried(job)
    end
    local is_served
    if is_only then -- only a type with live workers has the field (`workers.note_served`): so the count tells
        is_served = redis.call("HINCRBY", key.metrics(type), "published", "1") > 1 or is_first_counted(type)
    else
        is_served = is_counted(type)
    end
    if delay_us > 0 then
        redis.call("HSET", its, "published", call.text(enqueued_us))
        redis.call("ZADD", key.scheduled, due, id)
        workers.tick_in_time(delay_us, key.scheduled, id)
        return protocol.IS_SCHEDULED, 1, false
    end
    local found = redis.call("HMGET", key.heads, type, "!")
    local heads, has_type_rules = found[1], found[2]
    local alone
    local waits_as = rule and rule.enters(job, lane, due, joined, is_again)
    if waits_as == "patient" then
        return protocol.IS_SCHEDULED, 1, false
    elseif waits_as == "merged" then
        heads = heads or "" -- others wait
    elseif rule and id_suffix.has_key(id) then
        hooks.wait(id, type, lane, due, job, heads or "")
    elseif heads or has_type_rules or not is_only then
        if rule then
            hooks.enters_lane(id, type, lane, due)
        end
        lanes.add(id, type, lane, due, heads or "")
    else
        alone = { id = id, type = type, lane = lane, enqueued = due, has_rules = rule ~= nil }
    end
    is_served = is_served or redis.call("HGET", key.capacity, protocol.WITHDRAWN .. type)
    local state = waits_as == "merged" and protocol.IS_MERGED or protocol.IS_PENDING
    if not is_served then
        redis.call("HINCRBY", key.counters, "unserved", 1)
        return state, 0, false, alone
    end
    return state, 1, not heads or has_type_rules == protocol.HAS_RESERVES, alone
end

-- Places pending jobs of `their_types`, as `fill` does. `messages`: job id -> message, of the jobs that were just
-- written. `alone`: as `put` returns it. RETURNS more, as `fill` does. Most publishes find no free slot.
function enqueue.place(their_types, messages, alone)
    local fitting, left = 0, ""
    if call.published then
        for type, number in pairs(call.published) do
            redis.call("HINCRBY", key.metrics(type), "published", number)
        end
    end
    if next(call.to_fill) then
        their_types, left = hooks.with_to_fill(their_types) -- a job may state a higher limit for others
    end
    for _, type in ipairs(their_types) do
        fitting = fitting + free_slots.free_for(type)
    end
    if fitting > 0 then
        local view = slot_choice.view()
        local waiting = alone and queue_heads.only(alone)
            or queue_heads.of(their_types, view, settings_in_force.read())
        return fill.from(waiting, "", view, messages)[1] .. left
    end
    if alone then
        if alone.has_rules then
            hooks.enters_lane(alone.id, alone.type, alone.lane, alone.enqueued)
        end
        lanes.add(alone.id, alone.type, alone.lane, alone.enqueued, "")
    end
    return left
end

-- Writes and places `job`, the only one of its call. RETURNS the reply of `publish`.
function enqueue.only(job)
    local bad = validate.first_invalid_field(job)
    if bad then
        return { protocol.IS_REFUSED, "", bad }
    end
    local state, served, is_first, alone = enqueue.insert(job, call.now_us, true)
    if is_first or alone or next(call.to_fill) then
        return { state, enqueue.place(is_first and { job.type } or {}, { [job.id] = job.message }, alone), served }
    end
    return { state, "", served } -- nothing to place, as mostly
end
