-- recover: a worker is dead, says its guard, which saw it end. What it held is pending again, counted as a delivery;
-- what had been acked is lost.
-- RETURNS {more, recovered}; an unknown worker changes nothing.
-- Cost: O(moves * log n), at most 10 moves in one call.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/recover.lua
-- @include lib/fill.lua
-- @include lib/view.lua

local worker = ARGV[1]

local MAX = 10

if redis.call("EXISTS", key.worker(worker)) == 0 then
    return { 0, 0 }
end
local settings = read_settings()
local types = {}
local recovered, gone = recover(worker, MAX, types, settings)
local filled = fill(types, "", settings, slots.view())
return { (filled[1] == 1 or not gone) and 1 or 0, recovered }
