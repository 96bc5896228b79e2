-- publish: client -> pending, or scheduled if its time is still to come. Places the job at once if a slot is free.
-- A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, more, served}; state 0: known already, 1: pending or placed, 2: scheduled, 3: revoked before, or
-- expired. served 0: it is pending, and no live worker serves its type.
-- Cost: O(log n) in pending jobs. Its first write may be refused by a full server, before anything is written.
-- @include lib/keys.lua
-- @include lib/settings.lua
-- @include lib/publish.lua

local id = ARGV[1]
local type = ARGV[2] -- encoded
local mode = ARGV[3] -- "queued" or "demand"
local priority = ARGV[4] -- 0..10, 10 highest
local delay_us = tonumber(ARGV[5]) -- until it is due; the publisher's clock is not asked what time it is
local task_id = ARGV[6] -- encoded; "" if it has none
local task_name = ARGV[7]
local expires_us = ARGV[8] -- until it expires; "" for never
local stamps = ARGV[9] -- "name:value", encoded, separated by blanks
local message = ARGV[10] -- as kombu sends it

return publish({
    id = id, type = type, mode = mode, priority = priority, delay_us = delay_us, task_id = task_id,
    task_name = task_name, expires_us = expires_us, stamps = stamps, message = message,
})
