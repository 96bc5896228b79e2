-- announce: which ends are to be told to their callers now. Whoever asks tells them, and says so (`told`); what it does
-- not say by then is told by another.
-- RETURNS {id, how, type, task id, task name, deliveries, µs since it ended, message, ...}; how: "revoked",
-- "expired", or why it is dead. message: "" if it is gone.
-- Cost: at most 10 jobs in one call, of 100 that are looked at.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/clock.lua

local again_us = ARGV[1] -- after so long
local app = ARGV[2] -- encoded: what it has left to others it gets again only when nobody has told it

local MAX = 10
local LOOKED_AT = 100
local OTHERS_HAVE_US = 15000000

local function is_left(left, since_us)
    return since_us < OTHERS_HAVE_US and string.find(" " .. (left or "") .. " ", " " .. app .. " ", 1, true)
end

local found, count = {}, 0
local now = clock.now
for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.untold, "-inf", now, "LIMIT", 0, LOOKED_AT)) do
    local row = redis.call("HMGET", key.job(id),
        "state", "reason", "type", "task", "name", "deliveries", "ended", "left")
    local since_us = math.max(0, clock.now_us - tonumber(row[7]))
    if count < MAX and not is_left(row[8], since_us) then
        count = count + 1
        redis.call("ZADD", key.untold, clock.text(clock.now_us + tonumber(again_us)), id)
        local how = row[1] == "dead" and row[2] or row[1]
        for _, value in ipairs({ id, how, row[3], row[4], row[5], row[6], clock.text(since_us) }) do
            found[#found + 1] = value
        end
        found[#found + 1] = redis.call("GET", key.message(id)) or ""
    end
end
return found
