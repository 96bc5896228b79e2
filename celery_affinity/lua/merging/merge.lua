-- merge: calls of one task that say the same merge key, and wait together, are one run. A call that finds another one
-- like it makes a batch of the two, which has a row of its own, and waits, is claimed and comes back as a job does;
-- further calls join the batch. Calls join only what waits and was never delivered: that is open for them (`callers`).
-- Cost: about ten commands for a call that joins, two for one that does not; O(log n) in pending jobs.

-- RETURNS whether a call's own row keeps its rules, which its batch says as well: there may be very many calls. The
-- first calls do: a batch whose row is lost is made again of them.
function merge.says_rules(id, number)
    return number <= protocol.MOST_MOVES or id_suffix.has_key(id) or id_suffix.has_hint(id)
end

-- Adds call `id` to `batch`, as its call with that number.
local function add(id, batch, number)
    redis.call("HSET", key.job(id), "state", "merged", "into", batch)
    redis.call("HDEL", key.job(id), "bytes", merge.says_rules(id, number) and "bytes" or "rules")
    redis.call("ZADD", key.callers(batch), number, id)
end

-- Writes the row of a batch of so many `calls`; then the fields that follow, with their values.
function merge.write_batch(batch, type, lane, enqueued, name, rules, calls, ...)
    redis.call("HSET", key.job(batch), "type", type, "lane", lane, "enqueued", enqueued, "task", "", "name",
        name or "", "rules", rules or "", "calls", calls, ...)
end

-- Makes the batch of call `first`, which waits; the batch waits instead. `row`: what `find` returned of the call.
local function make_batch(first, batch, type, row, name)
    if not row.patient or id_suffix.has_key(first) then
        hooks.leave(first, type, row.lane) -- a key may be kept for a patient one, too
    end
    add(first, batch, 1)
    merge.write_batch(batch, type, row.lane, row.enqueued, name, row.rules, 1, "state", row.state, "bytes", row.bytes)
    if row.is_moved then
        redis.call("HSET", key.job(batch), "moved", 1, "claimed", "") -- see `claims.grant`
    end
    if row.patient then
        merge_window.hand_over(first, batch, row.patient)
    else
        hooks.wait(batch, type, row.lane, row.enqueued)
    end
end

-- RETURNS the lane with the better mode and the better priority of two lanes.
function merge.better_lane(lane, other)
    if lane == other then
        return lane
    end
    local is_demanded = lanes.is_on_demand(lane) or lanes.is_on_demand(other)
    return lanes.name(is_demanded and "demand" or "queued", math.max(lanes.priority(lane), lanes.priority(other)))
end

-- RETURNS whether a batch of so many `calls` and `bytes` has room for a call of `added` bytes, by its `rules`.
function merge.has_capacity(calls, bytes, added, rules)
    local most, most_bytes = rules_codec.bounds(rules)
    return calls < most and bytes + added <= most_bytes
end

-- RETURNS the id of the call or batch that is open in this field of key `merging`, and a table of what its row says;
-- nil if none is open that others may join. is_alone: whether that is a call and the id of the batch that would begin
-- with it is taken, by a batch without this call: so no call can join.
function merge.find(field)
    local id = redis.call("HGET", key.merging, field)
    if not id then
        return nil
    end
    local state, deliveries, lane, enqueued, calls, its_bytes, its_rules, patient, is_moved =
        unpack(redis.call("HMGET", key.job(id), "state", "deliveries", "lane", "enqueued", "calls", "bytes", "rules",
            "patient", "moved"))
    patient = state == "scheduled" and tonumber(patient) or nil
    local is_good = lanes.is_one(lane) and its_rules and string.find(enqueued or "", "^%d+$")
    if not (is_good and (state == "pending" or patient) and (deliveries or "0") == "0") then
        return nil
    end
    return id, { state = state, patient = patient, lane = lane, enqueued = enqueued, calls = tonumber(calls) or 1,
        bytes = its_bytes, rules = its_rules, is_moved = is_moved,
        is_alone = id_suffix.of(id) ~= protocol.BATCH and redis.call("EXISTS", key.job(id_suffix.batch_of(id))) == 1 }
end

-- RETURNS whether `job`, which is not written yet, will join others. `opened`: field of key `merging` -> calls and
-- bytes of what will be open there once the publish has written the jobs that were asked about before; `job` is added.
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

-- Opens `batch` for further calls like its own, unless these have something else to join.
function merge.open_if_none_is(batch, type, rules, name)
    local field = batch_calls.place(type, rules, name)
    if field and not merge.find(field) then
        redis.call("HSET", key.merging, field, batch)
    end
end

-- Job `id` has moved: from what `row` says, to `lane` of `type`. If the job was open for further calls of its old type,
-- it is open for calls of the new type instead, unless these have something else to join: then the patience of the job
-- ends. The patience ends as well if the new lane is on demand.
function merge.is_moved(id, row, type, lane)
    local patient = row.state == "scheduled" and tonumber(row.patient) or nil
    local field = type ~= row.type and batch_calls.place(row.type, row.rules, row.name)
    if field and redis.call("HGET", key.merging, field) == id then
        redis.call("HDEL", key.merging, field)
        merge.open_if_none_is(id, type, row.rules, row.name)
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

-- RETURNS the batch that a call of `bytes` is to join, which may still have to be made, and what is known of what is
-- open; nil if nothing is, or it has no room. What has no room is patient no more.
function merge.to_join(type, rules, name, bytes)
    local field = batch_calls.place(type, rules, name)
    if not field then
        return nil
    end
    local id, row = merge.find(field)
    if not id then
        return nil
    end
    local its_bytes = tonumber(row.bytes) or math.huge
    if row.is_alone or not merge.has_capacity(row.calls, its_bytes, bytes, rules) then
        if row.patient then
            merge_window.finish(id, row.patient)
        end
        return nil
    end
    row.is_full = row.patient and not merge.has_capacity(row.calls + 1, its_bytes + bytes, 1, rules)
    row.id, row.field = id, field
    return id_suffix.of(id) == protocol.BATCH and id or id_suffix.batch_of(id), row
end

-- Opens call `id`, which is to wait in `lane` and found nothing to join, for further calls. RETURNS whether it is
-- patient: then it is scheduled; else the caller has it wait.
function merge.open(id, type, lane, enqueued, rules, name, bytes)
    local field = batch_calls.place(type, rules, name)
    if not field then
        return false
    end
    redis.call("HSET", key.merging, field, id)
    return merge_window.begin(id, lane, enqueued, rules, bytes)
end

-- Has call `id`, which would wait in `lane`, join `batch`: `batch` and `row` are what `to_join` returned. The batch is
-- as old as the oldest call, and as urgent as the most urgent, of all that ever joined. `is_written`: whether the row
-- of the call says that it has merged.
function merge.join(id, type, lane, enqueued, name, bytes, batch, row, is_written)
    if row.id ~= batch then
        make_batch(row.id, batch, type, row, name)
        redis.call("HSET", key.merging, row.field, batch)
    end
    local lane_now = merge.better_lane(row.lane, lane)
    local enqueued_now = tonumber(enqueued) < tonumber(row.enqueued) and enqueued or row.enqueued
    local is_changed = lane_now ~= row.lane or enqueued_now ~= row.enqueued
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
        redis.call("HSET", key.job(batch), "lane", lane_now, "enqueued", enqueued_now)
    end
    if row.patient then
        row.lane, row.enqueued = lane_now, enqueued_now
        merge_window.go_on(batch, row.patient, row)
    elseif is_changed then
        hooks.wait(batch, type, lane_now, enqueued_now)
    else
        batch_calls.count_waiting(type, 1)
    end
end
