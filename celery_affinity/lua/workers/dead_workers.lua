-- dead_workers: the jobs come back of a worker that leaves, or is dead: a `tick` noticed its silence, or its guard saw
-- it end and called `recover`.

-- RETURNS ids of jobs that `worker` holds: all of them, or more than `most`.
local function some_of(worker, most)
    local ids, is_known, cursor = {}, {}, "0"
    repeat
        local page = redis.call("HSCAN", key.claims(worker), cursor, "COUNT", most + 1)
        cursor = page[1]
        for nth = 1, #page[2], 2 do
            local id = page[2][nth]
            if not is_known[id] then -- HSCAN may return one twice while the hash grows or shrinks
                ids[#ids + 1], is_known[id] = id, true
            end
        end
    until cursor == "0" or #ids > most
    return ids
end

-- RETURNS more than `most` jobs of a dead worker, or all that it held; and how many of them, the first ones, had no
-- slot: those that were claimed last. These had not started, so they cannot be what killed the worker.
local function some_and_those_ahead(worker, most)
    local row = free_slots.row(worker)
    local ahead = row[free_slots.PROFILE] and -free_slots.left(worker, row) or 0
    if ahead <= 0 then
        return some_of(worker, most), 0
    end
    local claimed = redis.call("HGETALL", key.claims(worker))
    local ids, fences = flat.members(claimed), flat.values(claimed)
    table.sort(ids, function(one, other)
        return (tonumber(fences[one]) or 0) > (tonumber(fences[other]) or 0)
    end)
    return ids, ahead
end

-- Takes back at most `most` jobs of `worker`, and adds the types of those that are pending again to `types`. If the
-- worker `is_dead`, this counts as a delivery of the jobs that had a slot. A worker that holds nothing any more is
-- forgotten. RETURNS how many jobs came back, and whether the worker is gone.
function dead_workers.take_back(worker, most, types, settings, is_dead)
    workers.close(worker)
    local ids, ahead
    if is_dead then
        -- It stays dead until all its jobs are back, in further calls: no late heartbeat changes that.
        redis.call("ZADD", key.heartbeats, protocol.GIVEN_UP_US, worker)
        ids, ahead = some_and_those_ahead(worker, most)
    else
        ids = some_of(worker, most)
    end
    local number = math.min(#ids, most)
    for nth = 1, number do
        local how = is_dead and nth > ahead and "unsettled" or "returned"
        types[#types + 1] = requeue.requeue(worker, ids[nth], how, settings)
    end
    if #ids <= most then
        workers.remove(worker)
    end
    return number, #ids <= most
end
