-- drop: dead letters are deleted, because a person asked for it.
-- RETURNS the number of jobs deleted; a job that is not dead stays.
-- Cost: at most MOST_MOVES jobs in one call, by the caller.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include jobs/come_back.lua

-- ARGV[1..]: job ids
local dropped = 0
for _, id in ipairs(ARGV) do
    local state = redis.call("HGET", key.job(id), "state")
    if state == "dead" or (not state and redis.call("ZSCORE", key.dead, id)) then -- only the place of its row is left
        come_back.forget(id)
        dropped = dropped + 1
    end
end
return dropped
