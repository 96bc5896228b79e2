-- ended: for how long a job is known that ended without a slot, or with others (`affinity_keep`), and the index of the
-- jobs that are known for over a minute. A release, by which most jobs end, has that from its worker's row.
-- @include base/clock.lua
-- @include jobs/find_by.lua
-- @include jobs/marks.lua

-- Has job `id`, which has ended, be found by its task alone, and forgotten in time. A batch is not in the index: its
-- calls are.
local function remember(id)
    local keep_us = tonumber(redis.call("HGET", key.settings, "keep_us")) or 0
    local seconds = math.max(protocol.ENDED_KEPT_S, math.floor(keep_us / 1000000))
    find_by.remove(id, seconds)
    redis.call("EXPIRE", key.job(id), seconds)
    if seconds > protocol.ENDED_KEPT_S and marks.of(id) ~= protocol.BATCH then
        redis.call("ZADD", key.ended, clock.now, id)
    end
end
