-- purge: deletes waiting jobs of a type for an operator: pending jobs, and the given scheduled jobs.
--
-- Returns {deleted, again}. again: 1 if more jobs are pending and the caller must invoke the function again.
-- Cost: at most MOST_PURGED jobs of each kind per invocation. A job with a key, or a call of a batch, counts as several
-- jobs. Each recurring call that a job postponed adds 1.

-- Returns the number of jobs that the deletion of job `id` counts as. `do_some_recur`: true if recurring calls exist.
local function cost_of(id, type, do_some_recur)
    local own_cost = id_suffix.has_key(id) and protocol.KEYED_COUNTS_AS or 1
    return own_cost + hooks.of(id).counts_as(id, type, do_some_recur)
end

-- Deletes a job that has been removed from its lane. A job with a key may be blocked, waiting for `lane`.
local function forget(id, type, lane)
    if lane then
        hooks.leave_gate(id, type, lane)
    end
    hooks.of(id).is_purged(id, type)
end

-- Deletes jobs of `type`, including the scheduled jobs in `arguments`, from the second argument. Returns the reply.
local function delete_some(type, arguments)
    local deleted, counted = 0, 0 -- number of jobs; counted cost of the jobs from lanes
    local do_some_recur = redis.call("EXISTS", key.recurring_matches) == 1

    -- Returns the first jobs of a sorted set, within the remaining budget of this invocation.
    local function some_of(place)
        local ids = {}
        for _, id in ipairs(redis.call("ZRANGE", place, 0, protocol.MOST_PURGED - counted - 1)) do
            if counted >= protocol.MOST_PURGED then
                break
            end
            ids[#ids + 1] = id
            counted = counted + cost_of(id, type, do_some_recur)
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
            return { deleted, 1 } -- the code below would delete jobs that keys have just admitted
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
    -- ARGV[2..]: ids of scheduled jobs, at most MOST_PURGED

    hooks.many_leave()
    local reply = delete_some(type, ARGV)
    hooks.leave_to_tick()
    return reply
end
