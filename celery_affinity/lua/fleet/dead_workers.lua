-- dead_workers: the jobs of a dead worker come back, whether a `tick` noticed its silence or its guard saw it end and
-- called `recover`.

-- RETURNS more than `max` jobs of `worker`, or all that it holds, and how many of these had no slot yet. Those that had
-- none come first: the jobs that were claimed last. What a worker holds beyond its slots has not started, so it cannot
-- be what killed the worker, however often the worker dies.
local function held_by(worker, max)
    local row = free_slots.row(worker)
    local beyond = row[free_slots.PROFILE] and -free_slots.left(worker, row) or 0
    if beyond <= 0 then
        return come_back.some_of(worker, max), 0
    end
    local ids, fences = {}, {}
    local claimed = redis.call("HGETALL", key.claims(worker))
    for i = 1, #claimed, 2 do
        ids[#ids + 1], fences[claimed[i]] = claimed[i], tonumber(claimed[i + 1]) or 0
    end
    table.sort(ids, function(one, other)
        return fences[one] > fences[other]
    end)
    return ids, beyond
end

-- Takes back at most `max` jobs of `worker`, and adds the types of those that are pending again to `types`. This counts
-- as a delivery of the jobs that had a slot. A worker that holds nothing any more is forgotten.
-- RETURNS how many jobs came back, and whether the worker is gone.
function dead_workers.take_back(worker, max, types, settings)
    workers.close(worker)
    -- A worker that is given up stays so: the next call goes on with it, and no late beat stops that.
    redis.call("ZADD", key.beats, protocol.GIVEN_UP_US, worker)
    local recovered = 0
    local ids, beyond = held_by(worker, max)
    for nth, id in ipairs(ids) do
        if recovered == max then
            return recovered, false
        end
        types[#types + 1] = come_back.put(worker, id, nth > beyond, settings)
        recovered = recovered + 1
    end
    workers.remove(worker)
    return recovered, true
end
