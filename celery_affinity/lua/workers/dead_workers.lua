-- dead_workers: reclaims the jobs of a worker that leaves or is dead. A dead worker was silent until a `tick`, or its
-- guard saw it end and invoked `recover`.

-- Returns ids of jobs that `worker` holds: all of them, or more than `most`.
local function some_jobs_of(worker, most)
    local ids, is_listed, cursor = {}, {}, "0"
    repeat
        local page = redis.call("HSCAN", key.claims(worker), cursor, "COUNT", most + 1)
        cursor = page[1]
        for nth = 1, #page[2], 2 do
            local id = page[2][nth]
            if not is_listed[id] then -- HSCAN can return a field twice while the hash is resized
                ids[#ids + 1], is_listed[id] = id, true
            end
        end
    until cursor == "0" or #ids > most
    return ids
end

-- Returns ids of jobs that a dead worker held: all of them, or more than `most`. The second value is the number of
-- prefetched jobs. They are first in the list, because they were claimed last. They had not started, so they cannot
-- have killed the worker.
local function some_jobs_and_prefetched(worker, most)
    local row = free_slots.row(worker)
    local prefetched = row[free_slots.PROFILE] and -free_slots.left(worker, row) or 0
    if prefetched <= 0 then
        return some_jobs_of(worker, most), 0
    end
    local claimed = redis.call("HGETALL", key.claims(worker))
    local ids, fences = flat.members(claimed), flat.values(claimed)
    table.sort(ids, function(first_id, second_id)
        return (tonumber(fences[first_id]) or 0) > (tonumber(fences[second_id]) or 0)
    end)
    return ids, prefetched
end

-- Reclaims up to `most` jobs of `worker`, and adds the types of pending ones to `types`. If the worker `is_dead`, this
-- counts as a delivery of jobs that had a slot. A worker without claims is removed. Returns the number of reclaimed
-- jobs, and true if the worker was removed.
function dead_workers.take_back(worker, most, types, settings, is_dead)
    workers.close(worker)
    local ids, prefetched
    if is_dead then
        -- The worker stays dead until later invocations have reclaimed all its jobs: a late heartbeat cannot change
        -- that.
        redis.call("ZADD", key.heartbeats, protocol.GIVEN_UP_US, worker)
        ids, prefetched = some_jobs_and_prefetched(worker, most)
    else
        ids = some_jobs_of(worker, most)
    end
    local number = math.min(#ids, most)
    for nth = 1, number do
        local how = is_dead and nth > prefetched and "unsettled" or "returned"
        types[#types + 1] = requeue.requeue(worker, ids[nth], how, settings)
    end
    if #ids <= most then
        workers.remove(worker)
    end
    return number, #ids <= most
end
