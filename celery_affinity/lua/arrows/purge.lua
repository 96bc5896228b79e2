-- purge: deletes jobs of a type that wait, because a person asked for it: pending jobs, and the scheduled jobs that are
-- named.
-- RETURNS {deleted, again}; again 1: call again, more jobs are pending.
-- Cost: at most MOST_PURGED jobs of each kind in one call; a job with a key, or a call of a batch, counts as several,
-- and each recurring call that a job put off as one more.
function arrows.purge(ARGV)
    local type = ARGV[1] -- encoded
    -- ARGV[2..]: ids of scheduled jobs, MOST_PURGED at most

    local deleted = 0
    local counted = 0 -- jobs of lanes, each as often as it counts
    local do_some_recur = redis.call("EXISTS", key.recurs) == 1

    -- RETURNS the first of `ids`, as many as this call still deletes.
    local function as_many_as_go(ids)
        local some = {}
        for _, id in ipairs(ids) do
            if counted >= protocol.MOST_PURGED then
                break
            end
            some[#some + 1] = id
            counted = counted + (marks.has_rules(id) and protocol.KEYED_COUNTS_AS or 1)
            if marks.of(id) == protocol.BATCH then
                local calls = math.min(redis.call("ZCARD", key.callers(id)), protocol.MOST_FORGOTTEN)
                counted = counted + calls * protocol.KEYED_COUNTS_AS
            end
            if do_some_recur and (marks.of(id) == protocol.BATCH or marks.of(id) == protocol.MERGES) then
                local names = recurring.names_of(type, unpack(redis.call("HMGET", key.job(id), "rules", "name")))
                counted = counted + select(2, string.gsub(names or "", "%S+", ""))
            end
        end
        return some
    end

    -- Deletes a job, which is in no lane by now; one with a key may be kept back.
    local function forget(id, lane)
        if lane and marks.has_rules(id) then
            keyed.leave(id, type, lane)
        end
        if marks.of(id) == protocol.MERGES or marks.of(id) == protocol.BATCH then
            local state, rules, name, enqueued, patient =
                unpack(redis.call("HMGET", key.job(id), "state", "rules", "name", "enqueued", "patient"))
            callers.close(id, type, rules, name)
            if state == "pending" or patient then
                recurring.take_back(type, rules, name, enqueued)
            end
            if state ~= "scheduled" then
                callers.count_waiting(type, -callers.beyond_one(id))
            end
            come_back.forget(id)
        else
            find_by.remove(id, 0)
            redis.call("UNLINK", key.job(id), key.message(id))
        end
        deleted = deleted + 1
    end

    for i = 2, #ARGV do
        local state, its_type, lane = unpack(redis.call("HMGET", key.job(ARGV[i]), "state", "type", "lane"))
        if state == "scheduled" and its_type == type then
            redis.call("ZREM", key.scheduled, ARGV[i])
            forget(ARGV[i], lane)
        end
    end

    for _, lane in ipairs(lanes.names()) do
        local ids = redis.call("ZRANGE", key.kept_back(type, lane), 0, protocol.MOST_PURGED - counted - 1)
        for _, id in ipairs(as_many_as_go(ids)) do
            forget(id, lane)
        end
        if counted >= protocol.MOST_PURGED then
            return { deleted, 1 } -- what follows would take jobs that a key has let go on just now
        end
    end
    local heads = redis.call("HGET", key.heads, type) or ""
    for lane, enqueued, first_id in lanes.each(heads) do
        if counted >= protocol.MOST_PURGED then
            break
        end
        local ids = as_many_as_go(redis.call("ZRANGE", key.lane(type, lane), 0, protocol.MOST_PURGED - counted - 1))
        redis.call("ZREMRANGEBYRANK", key.lane(type, lane), 0, #ids - 1)
        local first = string.find(heads, lane .. " " .. enqueued .. " " .. first_id, 1, true)
        heads = lanes.with_new_head(type, lane, heads, first, first + #lane + #enqueued + #first_id + 1)
        lanes.rewrite(type, heads)
        for _, id in ipairs(ids) do
            forget(id, lane)
        end
    end
    return { deleted, counted >= protocol.MOST_PURGED and heads ~= "" and 1 or 0 }
end
