-- announce: which ends are to be told to their callers now. Whoever asks tells them, and says so (`told`); what it does
-- not say by then is told by another.
-- RETURNS {id, how, type, task id, task name, deliveries, times asked before, message, ...}; how: "revoked",
-- "expired", or why it is dead. message: "" if it is gone.
-- Cost: at most 10 jobs in one call.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/clock.lua

local again_us = ARGV[1] -- after so long

local MAX = 10
local found = {}
for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.untold, "-inf", clock.text(clock.now_us), "LIMIT", 0, MAX)) do
    redis.call("ZADD", key.untold, clock.text(clock.now_us + tonumber(again_us)), id)
    local asked = redis.call("HINCRBY", key.job(id), "asked", 1) - 1
    local row = redis.call("HMGET", key.job(id), "state", "reason", "type", "task", "name", "deliveries")
    local how = row[1] == "dead" and row[2] or row[1]
    for _, value in ipairs({ id, how, row[3], row[4], row[5], row[6], asked }) do
        found[#found + 1] = value
    end
    found[#found + 1] = redis.call("GET", key.message(id)) or ""
end
return found
