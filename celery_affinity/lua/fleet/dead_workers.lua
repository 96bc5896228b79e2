-- dead_workers: the jobs of a dead worker come back, whether a `tick` noticed its silence or its guard saw it end and
-- called `recover`.

-- Takes back at most `max` jobs of `worker`, and adds the types of those that are pending again to `types`. A worker
-- that holds nothing any more is forgotten.
-- RETURNS how many jobs came back, and whether the worker is gone.
function dead_workers.take_back(worker, max, types, settings)
    workers.close(worker)
    -- A worker that is given up stays so: the next call goes on with it, and no late beat stops that.
    redis.call("ZADD", key.beats, protocol.GIVEN_UP_US, worker)
    local recovered = 0
    for _, id in ipairs(come_back.some_of(worker, max)) do
        if recovered == max then
            return recovered, false
        end
        types[#types + 1] = come_back.put(worker, id, true, settings)
        recovered = recovered + 1
    end
    workers.remove(worker)
    return recovered, true
end
