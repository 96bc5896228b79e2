-- merge: hooks for calls that can merge (`default_hooks`).
merge.MARK = protocol.MERGES

function merge.joins(job)
    local batch, open = merge.to_join(job.type, job.rules, job.task_name, #job.message)
    return batch and { batch = batch, open = open }
end

-- The usual limits are not written. A joining call stores its rules only if `merge.stores_rules` returns true.
function merge.fields(job, joined)
    local fields = joined and { "into", joined.batch } or { "bytes", #job.message }
    if not joined or merge.stores_rules(job.id, joined.open.calls + 1) then
        fields[#fields + 1] = "rules"
        fields[#fields + 1] = string.gsub(job.rules, protocol.USUAL_BOUNDS .. "%f[%D]", "", 1)
    end
    return fields
end

-- Among the calls of a run, a retry keeps the publish time of its first attempt.
function merge.is_retried(job)
    local first = redis.call("ZRANGE", key.jobs_of_task(job.task_id), 0, 0)[1] or job.id
    redis.call("HSET", key.job(job.id), "again", (batch_calls.published_us(first)))
end

-- A retry postpones no recurring call.
function merge.enters(job, lane, enqueued, joined, is_again, early)
    local id, type, name, bytes = job.id, job.type, job.task_name, #job.message
    local is_patient
    if joined then
        merge.join(id, type, lane, enqueued, name, bytes, joined.batch, joined.open, true, early.head, early.due)
    else
        is_patient = merge.open(id, type, lane, enqueued, job.rules, name, bytes, early.due)
    end
    if not is_again then
        recurring.match(type, job.rules, name, job.task_id, job.recurring)
    end
    return joined and "merged" or is_patient and "patient" or nil
end

function merge.is_due(id, type, lane, enqueued, head, due)
    local its_rules, name, bytes_field, task, is_again, fired =
        unpack(redis.call("HMGET", key.job(id), "rules", "name", "bytes", "task", "again", "recurring"))
    local bytes, is_patient = tonumber(bytes_field) or 0, false
    local batch, row = merge.to_join(type, its_rules, name, bytes)
    if batch then
        merge.join(id, type, lane, enqueued, name, bytes, batch, row, false, head, due)
        due_times.remove(id, due)
        redis.call("ZREM", key.scheduled, id)
    else
        is_patient = merge.open(id, type, lane, enqueued, its_rules, name, bytes, due)
    end
    if batch and id_suffix.has_key(id) then
        hooks.leave(id, type, lane) -- its key may be reserved for it
    end
    if not is_again then
        recurring.match(type, its_rules, name, task, fired)
    end
    return batch or is_patient
end

function merge.adds_none(job, enqueued, opened)
    local _, asked = due_times.split(job.times)
    local early = due_times.fields(job.type, job.task_name, asked, tonumber(enqueued), false)
    local lane, due = lanes.name(job.mode, job.priority), early and early.due
    return merge.will_join(job, opened)
        or merge_window.end_for_first(lane, enqueued, job.rules, #job.message, due)
end

function merge.representative(id, into)
    return into or id
end

function merge.has_ended(id, known, state)
    batch_calls.close(id, known.type, known.rules, known.name)
    if state == "done" and not known.is_doubtful then
        recurring.run(known.type, known.rules, known.name, id, known.ran or id, known.task)
    end
end

function merge.ends_unrun(id)
    local state, type, its_rules, name, enqueued, patient, rank =
        unpack(redis.call("HMGET", key.job(id), "state", "type", "rules", "name", "enqueued", "patient", "rank"))
    batch_calls.close(id, type, its_rules, name)
    if state == "pending" or state == "claimed" or (state == "scheduled" and (patient or rank)) then
        recurring.take_back(type, its_rules, name, enqueued)
    end
    return state
end

-- No further calls join a call or batch that has already run.
function merge.is_paused(id)
    batch_calls.close(id, unpack(redis.call("HMGET", key.job(id), "type", "rules", "name")))
end

merge.let_go = batch_calls.let_go

function merge.dead_letter(id, _, row)
    batch_calls.close(id, row.type, row.rules, row.name)
    return false
end

-- Returns the number of jobs that the recurring calls postponed by a job count as.
function merge.counts_as(id, type, do_some_recur)
    if not do_some_recur then
        return 0
    end
    local its_rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
    return texts.number_of_words(recurring.names_of(type, its_rules, name))
end

function merge.is_purged(id, type)
    if merge.ends_unrun(id) ~= "scheduled" then
        batch_calls.count_waiting(type, -batch_calls.count_extra(id))
    end
    requeue.delete(id)
end

-- A batch ends, is purged and pauses like a call.
batches.has_ended, batches.is_purged, batches.is_paused = merge.has_ended, merge.is_purged, merge.is_paused
