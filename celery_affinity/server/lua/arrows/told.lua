-- told: the callers of these jobs know how they ended. Or they are left to another, or nobody is to tell them.
-- RETURNS how many had not been told of.
-- Cost: at most MOST_MOVES jobs in one call, by the caller.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include jobs/come_back.lua

local how = ARGV[1] -- "told"; "left": `app` does not know their tasks; "aside": nothing can be read of them
local app = ARGV[2]
-- ARGV[3..]: job ids

local function leave(id)
    if redis.call("EXISTS", key.job(id)) == 0 then
        redis.call("ZREM", key.untold, id) -- somebody deleted what was known of it
        return
    end
    local row = redis.call("HMGET", key.job(id), "left", "tries")
    redis.call("HSET", key.job(id), "left", row[1] and row[1] .. " " .. app or app)
    redis.call("ZADD", key.untold, clock.now, id)
    if row[2] and redis.call("HINCRBY", key.job(id), "tries", -1) == 0 then
        redis.call("HDEL", key.job(id), "tries") -- it was not tried
    end
end

-- What stands under its id stays as it is: it may be no job at all.
local function set_aside(id)
    redis.call("ZREM", key.untold, id)
end

local function forget_what_is_told(id)
    redis.call("ZREM", key.untold, id)
    redis.call("HDEL", key.job(id), "left", "tries")
    if redis.call("HGET", key.job(id), "state") ~= "dead" then
        ends.told(id)
    elseif not redis.call("ZSCORE", key.dead, id) then
        come_back.forget(id) -- there were too many of them: only this was left to do
    end
end

local settle = ({ told = forget_what_is_told, left = leave, aside = set_aside })[how]
local untold = 0
for i = 3, #ARGV do
    if redis.call("ZSCORE", key.untold, ARGV[i]) then
        untold = untold + 1
        settle(ARGV[i])
    end
end
return untold
