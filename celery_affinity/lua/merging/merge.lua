-- merge: waiting calls of one task with the same merge key share one run. The second such call creates a batch of both
-- calls. The batch has its own job hash, and is queued, claimed and requeued like a job. Further calls join the batch.
-- Calls join only a waiting call or batch that was never delivered: it is open (`batch_calls`).
-- Cost: about ten commands for a call that joins, two for other calls; O(log n) in pending jobs.

-- Returns true if a call's hash stores its rules. Its batch has the same rules, and there can be thousands of calls.
-- The first calls store them, so that a lost batch hash can be rebuilt.
function merge.stores_rules(id, number)
    return number <= protocol.MAX_MOVES or id_suffix.has_key(id) or id_suffix.has_hint(id)
end

local function add(id, batch, number)
    redis.call("HSET", key.job(id), "state", "merged", "into", batch)
    redis.call("HDEL", key.job(id), "bytes", merge.stores_rules(id, number) and "bytes" or "rules")
    redis.call("ZADD", key.callers(batch), number, id)
end

-- Writes the hash of a batch with this number of `calls`, and additional fields: name, value, ...
function merge.write_batch(batch, type, lane, enqueued, name, rules, calls, ...)
    redis.call("HSET", key.job(batch), "type", type, "lane", lane, "enqueued", enqueued, "task", "", "name",
        name or "", "rules", rules or "", "calls", calls, ...)
end

-- Creates the batch of the waiting call `first`, and queues the batch instead of the call. `row`: result of `find`.
local function make_batch(first, batch, type, row, name)
    if not row.patient or id_suffix.has_key(first) then
        hooks.leave(first, type, row.lane) -- a key may be reserved for a collecting job, too
    end
    due_times.remove(first, row.due)
    add(first, batch, 1)
    merge.write_batch(batch, type, row.lane, row.enqueued, name, row.rules, 1, "state", row.state, "bytes", row.bytes)
    merge.write_due_time(batch, row.head, row.due)
    if row.is_moved then
        redis.call("HSET", key.job(batch), "moved", 1, "claimed", "") -- see `claims.grant`
    end
    if row.patient then
        merge_window.hand_over(first, batch, row.patient)
    else
        hooks.wait(batch, type, row.lane, lanes.order(row.enqueued, nil, row.head))
    end
end

-- Writes the fields of a due time of a waiting batch, each nil if it has none.
function merge.write_due_time(batch, head, due)
    local has_due = due_times.in_field(due)
    if has_due then
        redis.call("HSET", key.job(batch), "due", due)
        due_times.add(batch, due)
    end
    if head then
        redis.call("HSET", key.job(batch), "head", head)
    end
    if has_due or head then -- a replayed batch was claimed before
        redis.call("HSETNX", key.job(batch), "claimed", "") -- see `claims.grant`
    end
end

-- Returns the field `due` with the earlier due time. Each can be nil.
function merge.earlier_due(due, other)
    local own_due, other_due = due_times.in_field(due), due_times.in_field(other)
    return other_due and (not own_due or tonumber(other_due) < tonumber(own_due)) and other or due
end

-- Returns the head start of a job with the earlier rank of two jobs, and with the enqueue time `enqueued`, the earlier
-- one of both; nil if it has none.
function merge.common_head(enqueued, rank, other_rank)
    local head_us = tonumber(enqueued) - math.min(tonumber(rank), tonumber(other_rank))
    return head_us > 0 and call.text(head_us) or nil
end

-- Returns the lane with the better mode and the better priority of both lanes.
function merge.better_lane(lane, other)
    if lane == other then
        return lane
    end
    local is_demanded = lanes.is_on_demand(lane) or lanes.is_on_demand(other)
    return lanes.name(is_demanded and "demand" or "queued", math.max(lanes.priority(lane), lanes.priority(other)))
end

-- Returns true if a batch with these `calls` and `bytes` has capacity for a call of `added` bytes, according to its
-- `rules`.
function merge.has_capacity(calls, bytes, added, rules)
    local max_calls, max_bytes = rules_codec.bounds(rules)
    return calls < max_calls and bytes + added <= max_bytes
end

-- Returns the open call or batch in this field of key `merging`, and a table of its hash fields. Returns nil if none is
-- open. is_alone: true for a call that no other call can join, because the id of its batch is used by a batch without
-- this call.
function merge.find(field)
    local id = redis.call("HGET", key.merging, field)
    if not id then
        return nil
    end
    local state, deliveries, lane, enqueued, calls, bytes_field, rules_field, patient, is_moved, head, due =
        unpack(redis.call("HMGET", key.job(id), "state", "deliveries", "lane", "enqueued", "calls", "bytes", "rules",
            "patient", "moved", "head", "due"))
    patient = state == "scheduled" and tonumber(patient) or nil
    local is_good = lanes.is_lane(lane) and rules_field and string.find(enqueued or "", "^%d+$")
    if not (is_good and (state == "pending" or patient) and (deliveries or "0") == "0") then
        return nil
    end
    return id, { state = state, patient = patient, lane = lane, enqueued = enqueued, calls = tonumber(calls) or 1,
        bytes = bytes_field, rules = rules_field, is_moved = is_moved, head = head or nil, due = due or nil,
        is_alone = id_suffix.of(id) ~= protocol.BATCH and redis.call("EXISTS", key.job(id_suffix.batch_of(id))) == 1 }
end

-- Returns true if `job`, which is not written yet, will join others. `opened`: field of key `merging` -> calls and
-- bytes that will be open there once the earlier jobs of the publish are written. `job` is added to it.
function merge.will_join(job, opened)
    local field = batch_calls.place(job.type, job.rules, job.task_name)
    local found = opened[field]
    if not found then
        local id, row = merge.find(field)
        found = id and not row.is_alone and { calls = row.calls, bytes = tonumber(row.bytes) or math.huge }
    end
    if found and merge.has_capacity(found.calls, found.bytes, #job.message, job.rules) then
        opened[field] = { calls = found.calls + 1, bytes = found.bytes + #job.message }
        return true
    end
    opened[field] = { calls = 1, bytes = #job.message }
    return false
end

-- Opens `batch` for similar calls, unless another call or batch is open for them.
function merge.open_unless_open(batch, type, rules, name)
    local field = batch_calls.place(type, rules, name)
    if field and not merge.find(field) then
        redis.call("HSET", key.merging, field, batch)
    end
end

-- Handles the move of job `id` to `lane` of `type`. `row`: its fields before the move. If the job was open for calls of
-- its old type, it is opened for calls of the new type. If another job is already open for these, the merge window of
-- `id` ends instead. The merge window also ends if the new lane is on-demand.
function merge.is_moved(id, row, type, lane)
    local patient = row.state == "scheduled" and tonumber(row.patient) or nil
    local field = type ~= row.type and batch_calls.place(row.type, row.rules, row.name)
    if field and redis.call("HGET", key.merging, field) == id then
        redis.call("HDEL", key.merging, field)
        merge.open_unless_open(id, type, row.rules, row.name)
        if patient and redis.call("HGET", key.merging, batch_calls.place(type, row.rules, row.name)) ~= id then
            merge_window.finish(id, patient)
            return
        end
    end
    if patient and lanes.is_on_demand(lane) then
        merge_window.finish(id, patient)
    end
end
batches.is_moved = merge.is_moved

-- Returns the batch that a call of `bytes` joins, which may not exist yet, and the fields of the open call or batch.
-- Returns nil if nothing is open or has capacity. Without capacity, the merge window of the open call or batch ends.
function merge.to_join(type, rules, name, bytes)
    local field = batch_calls.place(type, rules, name)
    if not field then
        return nil
    end
    local id, row = merge.find(field)
    if not id then
        return nil
    end
    local open_bytes = tonumber(row.bytes) or math.huge
    if row.is_alone or not merge.has_capacity(row.calls, open_bytes, bytes, rules) then
        if row.patient then
            merge_window.finish(id, row.patient)
        end
        return nil
    end
    row.is_full = row.patient and not merge.has_capacity(row.calls + 1, open_bytes + bytes, 1, rules)
    row.id, row.field = id, field
    return id_suffix.of(id) == protocol.BATCH and id or id_suffix.batch_of(id), row
end

-- Opens call `id`, which joined nothing, for further calls. Returns true if its merge window begins: it is scheduled
-- then. Otherwise the caller must queue it in `lane`.
function merge.open(id, type, lane, enqueued, rules, name, bytes, due)
    local field = batch_calls.place(type, rules, name)
    if not field then
        return false
    end
    redis.call("HSET", key.merging, field, id)
    return merge_window.begin(id, lane, enqueued, rules, bytes, due)
end

-- Adds call `id`, otherwise queued in `lane`, to `batch`. `batch`, `row`: results of `to_join`. The batch has the
-- earliest enqueue time, rank and due time, and the most urgent lane, of all calls that ever joined. `is_written`: true
-- if the call's hash is already in state "merged". `head`, `due`: fields of its hash, or nil.
function merge.join(id, type, lane, enqueued, name, bytes, batch, row, is_written, head, due)
    if row.id ~= batch then
        make_batch(row.id, batch, type, row, name)
        redis.call("HSET", key.merging, row.field, batch)
    end
    local new_lane = merge.better_lane(row.lane, lane)
    local new_enqueued = tonumber(enqueued) < tonumber(row.enqueued) and enqueued or row.enqueued
    local new_head = (head or row.head)
        and merge.common_head(new_enqueued, lanes.order(row.enqueued, nil, row.head), lanes.order(enqueued, nil, head))
    local is_changed = new_lane ~= row.lane or new_enqueued ~= row.enqueued or new_head ~= row.head
    if is_changed and not row.patient then
        hooks.leave(batch, type, row.lane)
    end
    local calls = row.calls + 1
    if is_written then
        redis.call("ZADD", key.callers(batch), calls, id)
    else
        add(id, batch, calls)
    end
    redis.call("HSET", key.job(batch), "calls", calls, "bytes", call.text(row.bytes + bytes))
    if is_changed then
        redis.call("HSET", key.job(batch), "lane", new_lane, "enqueued", new_enqueued)
    end
    local new_due = merge.earlier_due(row.due, due)
    merge.write_due_time(batch, new_head ~= row.head and new_head, new_due ~= row.due and new_due)
    if row.head and not new_head then
        redis.call("HDEL", key.job(batch), "head")
    end
    if row.patient then
        row.lane, row.enqueued, row.due = new_lane, new_enqueued, new_due
        merge_window.restart(batch, row.patient, row)
    elseif is_changed then
        hooks.wait(batch, type, new_lane, lanes.order(new_enqueued, nil, new_head))
    else
        batch_calls.count_waiting(type, 1)
    end
end

-- merge_window: calls of a task can wait for other calls that merge with them (`wait`, `at_most`). A call or its batch
-- becomes pending when no other call has joined for `wait`, or when it is `at_most` old. Until then it is collecting:
-- it is scheduled, and field `patient` of its hash has the end of the window. The rules of the first call apply. A tick
-- ends the window.

-- Returns the end of the merge window if a call joins now, or nil if the rules have no merge window. `due`: field of
-- the job hash, or nil.
local function end_of_window(rules, enqueued, due)
    local wait_us, at_most_us = rules_codec.wait(rules)
    local due_us = tonumber(due_times.in_field(due) or math.huge)
    return wait_us and math.min(call.now_us + wait_us, tonumber(enqueued) + at_most_us, due_us)
end

-- Schedules job `id` until `time` in µs.
local function schedule(id, time)
    local end_us = call.text(time)
    redis.call("HSET", key.job(id), "patient", end_us)
    redis.call("ZADD", key.scheduled, end_us, id)
end

-- Returns the end in µs of the merge window of a call that joins nothing. Returns nil if it does not wait: it is
-- on-demand (a user waits for its result), it has waited long enough, or it fills a run.
function merge_window.end_for_first(lane, enqueued, rules, bytes, due)
    local time = end_of_window(rules, enqueued, due)
    local _, max_bytes = rules_codec.bounds(rules)
    local waits = time and time > call.now_us and not lanes.is_on_demand(lane) and bytes < max_bytes
    return waits and time or nil
end

-- Begins the merge window of call `id`, which joined nothing, if it has one. Returns true if it has begun.
function merge_window.begin(id, lane, enqueued, rules, bytes, due)
    local time = merge_window.end_for_first(lane, enqueued, rules, bytes, due)
    if not time then
        return false
    end
    redis.call("HSET", key.job(id), "state", "scheduled")
    schedule(id, time)
    workers.tick_in_time(time - call.now_us, key.scheduled, id)
    return true
end

-- Transfers the merge window that ends at `time` from the first call to `batch`.
function merge_window.hand_over(first, batch, time)
    redis.call("HDEL", key.job(first), "patient")
    redis.call("ZREM", key.scheduled, first)
    schedule(batch, time)
end

-- Ends the merge window of job `id`, otherwise open until `time`: the immediate next tick queues the job.
function merge_window.finish(id, time)
    if time > protocol.AT_ONCE_US then -- a time in 1970: it stays in the past when the clock is set back
        schedule(id, protocol.AT_ONCE_US)
        workers.trigger_tick()
    end
end

-- Restarts the merge window of `batch`, which ends at `time`, after a call has joined. The window ends instead if the
-- batch is full or on-demand. `row`: current fields of the batch.
function merge_window.restart(batch, time, row)
    if row.is_full or lanes.is_on_demand(row.lane) then
        merge_window.finish(batch, time)
    elseif time > call.now_us then -- otherwise it is due, and the next tick queues it
        schedule(batch, end_of_window(row.rules, row.enqueued, row.due) or call.now_us)
    end
end
