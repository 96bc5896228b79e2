-- split_batch: claimed -> pending, for calls of a batch that its run cannot take. The calls form a new batch in the
-- same order. Its enqueue time is the oldest of the calls; its lane is the most urgent one, or the lane to which the
-- batch was moved. It has no merge window; other calls can join if no other batch is open. If the old batch paused,
-- other calls cannot join, and the new batch keeps the position in the lane. The primary stays, because the worker has
-- its message. Ended calls stay, too.
--
-- Returns {calls, unfilled}. calls: number of moved calls, or -1 if the caller does not hold the batch. unfilled: see
-- `fill`.
-- Cost: O(calls given), about 5 µs per call, plus the cost of `fill`.

-- Moves calls from `batch` into the new batch `part`. Returns the lane, the enqueue time and the message bytes of
-- `part`.
local function move_calls(ids, batch, part)
    local lane, enqueued, bytes = nil, nil, 0
    for number, id in ipairs(ids) do
        local call_lane, call_enqueued = unpack(redis.call("HMGET", key.job(id), "lane", "enqueued"))
        redis.call("ZREM", key.callers(batch), id)
        redis.call("ZADD", key.callers(part), number, id)
        redis.call("HSET", key.job(id), "into", part)
        if lanes.is_one(call_lane) then
            lane = merge.better_lane(lane or call_lane, call_lane)
        end
        enqueued = math.min(enqueued or math.huge, tonumber(call_enqueued) or call.now_us)
        bytes = bytes + redis.call("STRLEN", key.message(id))
    end
    return lane or "queued.0", call.text(enqueued), bytes
end

function functions.split_batch(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim
    -- ARGV[3..]: ids of calls

    if fence == "" or not batches.is_its_own(batch, fence) then
        return { -1, "" }
    end
    local type, name, rules, is_moved, batch_lane, primary, rank =
        unpack(redis.call("HMGET", key.job(batch), "type", "name", "rules", "moved", "lane", "primary", "rank"))
    local ids, seen, part = {}, {}, nil -- calls to move; the first unused id of a batch that one of them can begin
    for i = 3, #ARGV do
        local id = ARGV[i]
        if not seen[id] and id ~= primary and redis.call("ZSCORE", key.callers(batch), id) then
            ids[#ids + 1], seen[id] = id, true
            if not part and redis.call("EXISTS", key.job(id_suffix.batch_of(id))) == 0 then
                part = id_suffix.batch_of(id)
            end
        end
    end
    if not part then
        return { #ids > 0 and -1 or 0, "" }
    end
    local lane, enqueued, bytes = move_calls(ids, batch, part)
    redis.pcall("HINCRBY", key.job(batch), "size", -#ids)
    if is_moved and lanes.is_one(batch_lane) then
        lane = batch_lane
        redis.call("HSET", key.job(part), "moved", 1, "claimed", "") -- see `claims.grant`
    end
    merge.write_batch(part, type, lane, enqueued, name, rules, #ids, "state", "pending", "bytes", call.text(bytes))
    if rank then
        redis.call("HSET", key.job(part), "rank", rank, "claimed", "") -- see `claims.grant`
    else
        merge.open_if_none_is(part, type, rules, name)
    end
    hooks.wait(part, type, lane, lanes.order(enqueued, rank))
    return { #ids, fill.fill({ type }, "", settings_in_force.read(), slot_choice.view())[1] }
end
