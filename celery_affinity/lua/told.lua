-- told: the callers of these jobs know how they ended. Or an app that does not know their tasks leaves them to another.
-- RETURNS how many had not been told of.
-- Cost: at most 10 jobs in one call, by the caller.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/back.lua

local left_by = ARGV[1] -- an app, encoded; "": they were told
-- ARGV[2..]: job ids

local function leave(id)
    local left = redis.call("HGET", key.job(id), "left")
    redis.call("HSET", key.job(id), "left", left and left .. " " .. left_by or left_by)
    redis.call("ZADD", key.untold, clock.now, id)
end

local function forget_what_is_told(id)
    redis.call("ZREM", key.untold, id)
    redis.call("HDEL", key.job(id), "left")
    if redis.call("HGET", key.job(id), "state") ~= "dead" then
        ends.told(id)
    elseif not redis.call("ZSCORE", key.dead, id) then
        back.forget(id) -- there were too many of them: only this was left to do
    end
end

local untold = 0
for i = 2, #ARGV do
    if redis.call("ZSCORE", key.untold, ARGV[i]) then
        untold = untold + 1
        local done = left_by == "" and forget_what_is_told or leave
        done(ARGV[i])
    end
end
return untold
