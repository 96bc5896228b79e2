-- recover: the jobs of a dead worker come back, whoever noticed: a tick, by silence, or the worker's guard, at once.
-- @include base/clock.lua
-- @include fleet/workers.lua
-- @include jobs/come_back.lua

-- Takes back at most `max` jobs of `worker`, and adds the types of those that are pending again to `types`; forgets
-- the worker when it holds nothing any more.
-- RETURNS how many came back, and whether the worker is gone.
local function recover(worker, max, types, settings)
    workers.close(worker)
    -- So that the next call goes on with the worker, and a late beat does not stop it.
    redis.call("ZADD", key.beats, protocol.GIVEN_UP_US, worker)
    local recovered = 0
    for _, id in ipairs(back.some_of(worker, max)) do
        if recovered == max then
            return recovered, false
        end
        types[#types + 1] = back.put(worker, id, true, settings)
        recovered = recovered + 1
    end
    workers.remove(worker)
    return recovered, true
end
