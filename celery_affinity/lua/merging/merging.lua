-- merging: calls of one task with one merge key that wait together are one run. The second makes a batch of the two,
-- which has a row of its own, and waits, is claimed and comes back as a job does. A call alone is a job like others.
-- Calls join in the moment at which they would wait: what is open for them waits itself, and was never delivered.
-- Cost: some ten commands for a call that joins, two for one that does not; O(log n).

-- RETURNS whether the row of the call with that number says its rules. What the batch says as well the call need not:
-- there may be very many. Of the first calls a batch is made again whose row somebody deletes.
function merging.says_rules(id, number)
    return number <= protocol.MOST_MOVES or marks.has_rules(id)
end

-- Adds call `id`, which waits elsewhere or is scheduled, to `batch`, as its call with that number.
local function add(id, batch, number)
    redis.call("HSET", key.job(id), "state", "merged", "into", batch)
    redis.call("HDEL", key.job(id), "bytes", "deliveries", merging.says_rules(id, number) and "bytes" or "rules")
    redis.call("ZADD", key.callers(batch), number, id)
end

-- Makes the batch of `first`, which waits, from what is known of both. The batch waits instead. RETURNS its id.
local function make_batch(first, type, row, rules, name)
    local batch = marks.batch_of(first)
    if not row.patient or marks.has_rules(first) then
        with_rules.leave(first, type, row.lane) -- of one that is patient a key may be kept for it
    end
    add(first, batch, 1)
    redis.call("HSET", key.job(batch), "type", type, "lane", row.lane, "enqueued", row.enqueued, "deliveries", 0,
        "task", "", "name", name, "state", row.state, "rules", rules, "calls", 1, "bytes", row.bytes)
    if row.is_moved then
        redis.call("HSET", key.job(batch), "moved", 1, "claimed", "") -- see `claims.grant`
    end
    if row.patient then
        patience.hand_over(first, batch, row.patient)
    else
        with_rules.wait(batch, type, row.lane, row.enqueued)
    end
    return batch
end

-- RETURNS the lane of a batch of `lane` that a call of another lane joins: each has the better mode and priority.
function merging.better_lane(lane, other)
    if lane == other then
        return lane
    end
    local mode, priority = string.match(lane, "^(%l+)%.(%d+)$")
    local its_mode, its_priority = string.match(other, "^(%l+)%.(%d+)$")
    return lanes.name((mode == "demand" or its_mode == "demand") and "demand" or mode,
        math.max(tonumber(priority), tonumber(its_priority)))
end

-- RETURNS whether calls may join what has this state, and came back so often.
local function is_open(state, patient, deliveries)
    return (state == "pending" or patient) and deliveries == "0"
end

-- Lets further calls join `batch`, unless they have something else to join.
function merging.open_if_none_is(batch, type, rules, name)
    local field = callers.place(type, rules, name)
    local other = field and redis.call("HGET", key.merging, field) or ""
    local state, deliveries = unpack(redis.call("HMGET", key.job(other), "state", "deliveries"))
    if field and not is_open(state, state == "scheduled", deliveries) then
        redis.call("HSET", key.merging, field, batch)
    end
end

-- RETURNS whether what has so many `calls`, of so many bytes, has room for one more of `more` bytes, by its `rules`.
function merging.has_room(calls, bytes, more, rules)
    local most, most_bytes = string.match(rules, " most=(%d+) bytes=(%d+)") -- nil: the usual bounds
    return calls < tonumber(most or protocol.USUAL_MOST)
        and bytes + more <= tonumber(most_bytes or protocol.USUAL_MOST_BYTES)
end

-- RETURNS what calls that join `field` find open: its id, and what is known of it; nil if nothing is. Whether it has
-- room is another question; what is_alone never has: a batch that it made lives on without it.
function merging.find(field)
    local id = redis.call("HGET", key.merging, field)
    if not id then
        return nil
    end
    local state, deliveries, lane, enqueued, calls, its_bytes, its_rules, patient, is_moved =
        unpack(redis.call("HMGET", key.job(id), "state", "deliveries", "lane", "enqueued", "calls", "bytes", "rules",
            "patient", "moved"))
    patient = state == "scheduled" and tonumber(patient) or nil
    local is_good = lanes.is_one(lane) and its_rules and string.find(enqueued or "", "^%d+$")
    if not is_open(state, patient, deliveries) or not is_good then
        return nil
    end
    return id, { state = state, patient = patient, lane = lane, enqueued = enqueued, calls = tonumber(calls) or 1,
        bytes = its_bytes, rules = its_rules, is_moved = is_moved,
        is_alone = marks.of(id) ~= protocol.BATCH and redis.call("EXISTS", key.job(marks.batch_of(id))) == 1 }
end

-- RETURNS the batch that such a call is to join, and what is known of that, or of the call with which it is to be made;
-- nil if nothing is open, or has room for `bytes` more. What has none waits for no more calls.
function merging.open_for(type, rules, name, bytes)
    local field = callers.place(type, rules, name)
    if not field then
        return nil
    end
    local id, row = merging.find(field)
    if not id then
        return nil
    end
    local its_bytes = tonumber(row.bytes) or math.huge
    if row.is_alone or not merging.has_room(row.calls, its_bytes, bytes, rules) then
        if row.patient then
            patience.finish(id, row.patient)
        end
        return nil
    end
    row.is_full = row.patient and not merging.has_room(row.calls + 1, its_bytes + bytes, 1, rules)
    row.id, row.field = id, field
    return marks.of(id) == protocol.BATCH and id or marks.batch_of(id), row
end

-- RETURNS whether a call that finds nothing open waits for others first.
function merging.would_wait(lane, enqueued, rules, bytes)
    return patience.of_first(lane, enqueued, rules, bytes) ~= nil
end

-- Call `id`, which is to wait in `lane`, is what is open for calls like it from now on. RETURNS whether it waits for
-- more (`patience`).
function merging.begin(id, type, lane, enqueued, rules, name, bytes)
    local field = callers.place(type, rules, name)
    if not field then
        return false
    end
    redis.call("HSET", key.merging, field, id)
    return patience.begin(id, lane, enqueued, rules, bytes)
end

-- Has call `id`, which is to wait in `lane`, join `batch`, of which `open_for` says `row`. The batch keeps the oldest
-- enqueue time, and the best mode and priority, of all calls that ever joined. `is_written`: the call's row says so.
function merging.join(id, type, lane, enqueued, name, bytes, batch, row, is_written)
    if row.id ~= batch then
        make_batch(row.id, type, row, row.rules, name)
        redis.call("HSET", key.merging, row.field, batch)
    end
    local lane_now = merging.better_lane(row.lane, lane)
    local enqueued_now = tonumber(enqueued) < tonumber(row.enqueued) and enqueued or row.enqueued
    local is_changed = lane_now ~= row.lane or enqueued_now ~= row.enqueued
    if is_changed and not row.patient then
        with_rules.leave(batch, type, row.lane)
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
        patience.go_on(batch, row.patient, row)
    elseif is_changed then
        with_rules.wait(batch, type, lane_now, enqueued_now)
    else
        waiting_calls.add(type, 1)
    end
end

-- Has call `id`, whose row is written and which is to wait in `lane`, join what is open for calls like it. RETURNS the
-- batch; nil if none is, and then the call is what is open from now on; also whether the call waits for more.
function merging.enter(id, type, lane, enqueued, rules, name, bytes)
    local batch, row = merging.open_for(type, rules, name, bytes)
    if not batch then
        return nil, merging.begin(id, type, lane, enqueued, rules, name, bytes)
    end
    merging.join(id, type, lane, enqueued, name, bytes, batch, row)
    return batch
end
