-- purge: deletes jobs of a type that wait, because a person asked for it: pending jobs, and the scheduled jobs that are
-- named.
-- RETURNS {deleted, again}; again 1: call again, more jobs are pending.
-- Cost: at most MOST_PURGED jobs of each kind in one call; a job with a key, or a call of a batch, counts as several,
-- and each recurring call that a job put off as one more.

-- RETURNS as how many jobs the deletion of job `id` counts. `do_some_recur`: whether there are recurring calls.
local function count_of(id, type, do_some_recur)
    local its_own = id_suffix.has_key(id) and protocol.KEYED_COUNTS_AS or 1
    return its_own + hooks.of(id).counts_as(id, type, do_some_recur)
end

-- Deletes a job, which is not in its lane any more; one with a key may be kept back from `lane`.
local function forget(id, type, lane)
    if lane then
        hooks.leave_gate(id, type, lane)
    end
    hooks.of(id).is_purged(id, type)
end

-- Deletes jobs of `type`, and those of the scheduled ones in `arguments`, from the second on. RETURNS the reply.
local function delete_some(type, arguments)
    local deleted, counted = 0, 0 -- jobs; and as how many those of lanes count
    local do_some_recur = redis.call("EXISTS", key.recurs) == 1

    -- RETURNS the first jobs of a sorted set, as many as this call still deletes.
    local function some_of(place)
        local ids = {}
        for _, id in ipairs(redis.call("ZRANGE", place, 0, protocol.MOST_PURGED - counted - 1)) do
            if counted >= protocol.MOST_PURGED then
                break
            end
            ids[#ids + 1] = id
            counted = counted + count_of(id, type, do_some_recur)
        end
        deleted = deleted + #ids
        return ids
    end

    for i = 2, #arguments do
        local state, its_type, lane = unpack(redis.call("HMGET", key.job(arguments[i]), "state", "type", "lane"))
        if state == "scheduled" and its_type == type then
            redis.call("ZREM", key.scheduled, arguments[i])
            forget(arguments[i], type, lane)
            deleted = deleted + 1
        end
    end
    for _, lane in ipairs(lanes.NAMES) do
        for _, id in ipairs(some_of(key.kept_back(type, lane))) do
            forget(id, type, lane)
        end
        if counted >= protocol.MOST_PURGED then
            return { deleted, 1 } -- what follows would delete jobs of keys that have come to stand just now
        end
    end
    local heads = redis.call("HGET", key.heads, type) or ""
    for lane, enqueued, first_id in lanes.each(heads) do
        if counted >= protocol.MOST_PURGED then
            break
        end
        local ids = some_of(key.lane(type, lane))
        redis.call("ZREMRANGEBYRANK", key.lane(type, lane), 0, #ids - 1)
        local first = string.find(heads, lane .. " " .. enqueued .. " " .. first_id, 1, true)
        heads = lanes.with_new_head(type, lane, heads, first, first + #lane + #enqueued + #first_id + 1)
        lanes.write(type, heads)
        for _, id in ipairs(ids) do
            hooks.leaves_lane(id, type, lane)
            forget(id, type, lane)
        end
    end
    return { deleted, counted >= protocol.MOST_PURGED and heads ~= "" and 1 or 0 }
end

function functions.purge(ARGV)
    local type = ARGV[1] -- encoded
    -- ARGV[2..]: ids of scheduled jobs, MOST_PURGED at most

    hooks.many_leave()
    local reply = delete_some(type, ARGV)
    hooks.leave_to_tick()
    return reply
end
