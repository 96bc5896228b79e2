-- split_batch: claimed -> pending, for calls of a batch that its run cannot take. They are a batch of their own, in order, as
-- old as the oldest of them, and as urgent as the most urgent, or as the batch was moved. It waits for no more calls;
-- others may join if nothing else is open. After a batch that had a pause, no others join, and the new batch has the
-- same place in the lane. The primary, whose message the worker has, stays, and so do calls that have ended.
-- RETURNS {calls, unfilled}; calls: how many went; -1 if the batch is not the caller's. unfilled: as `fill` returns it.
-- Cost: O(calls given), about 5 µs for each, and that of `fill`.

-- Moves calls from `batch` into the batch `part`. RETURNS the lane of that, its enqueue time, and the bytes of its
-- messages.
local function move(ids, batch, part)
    local lane, enqueued, bytes = nil, nil, 0
    for number, id in ipairs(ids) do
        local its_lane, its_enqueued = unpack(redis.call("HMGET", key.job(id), "lane", "enqueued"))
        redis.call("ZREM", key.callers(batch), id)
        redis.call("ZADD", key.callers(part), number, id)
        redis.call("HSET", key.job(id), "into", part)
        if lanes.is_one(its_lane) then
            lane = merge.better_lane(lane or its_lane, its_lane)
        end
        enqueued = math.min(enqueued or math.huge, tonumber(its_enqueued) or call.now_us)
        bytes = bytes + redis.call("STRLEN", key.message(id))
    end
    return lane or "queued.0", call.text(enqueued), bytes
end

function functions.split_batch(ARGV)
    local batch = ARGV[1] -- id
    local fence = ARGV[2] -- number of the caller's claim of the batch
    -- ARGV[3..]: ids of calls

    if fence == "" or not batches.is_its_own(batch, fence) then
        return { -1, "" }
    end
    local type, name, rules, is_moved, its_lane, primary, rank =
        unpack(redis.call("HMGET", key.job(batch), "type", "name", "rules", "moved", "lane", "primary", "rank"))
    local ids, seen, part = {}, {}, nil -- calls that go; the batch of the first of them whose id for one is free
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
    local lane, enqueued, bytes = move(ids, batch, part)
    redis.pcall("HINCRBY", key.job(batch), "size", -#ids)
    if is_moved and lanes.is_one(its_lane) then
        lane = its_lane
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
