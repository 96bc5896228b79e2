-- told: the callers of these jobs know how they ended.
-- RETURNS how many had not been told of.
-- Cost: at most 10 jobs in one call, by the caller.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/back.lua

-- ARGV[1..]: job ids
local told = 0
for _, id in ipairs(ARGV) do
    if redis.call("ZREM", key.untold, id) == 1 then
        told = told + 1
        redis.call("HDEL", key.job(id), "asked")
        if redis.call("HGET", key.job(id), "state") ~= "dead" then
            ends.told(id)
        elseif not redis.call("ZSCORE", key.dead, id) then
            back.forget(id) -- there were too many of them: only this was left to do
        end
    end
end
return told
