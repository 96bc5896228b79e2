-- leave: a worker goes. What it still holds is pending again, its age intact; what had been acked is lost.
-- RETURNS {more, unfinished, returned}; unfinished 1: call again, it still holds something. returned: how many jobs are
-- pending again. An unknown worker changes nothing.
-- Cost: at most MOST_MOVES claims in one call.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include jobs/come_back.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua

local worker = ARGV[1]

if redis.call("EXISTS", key.worker(worker)) == 0 then
    return { "", 0, 0 }
end
local settings = read_settings()
local types = {}
workers.close(worker)
local claimed = come_back.some_of(worker, protocol.MOST_MOVES)
for i = 1, math.min(#claimed, protocol.MOST_MOVES) do
    types[#types + 1] = come_back.put(worker, claimed[i], false, settings)
end
if #claimed <= protocol.MOST_MOVES then
    workers.remove(worker)
end
local returned = #types
return { fill(types, "", settings, free_slots.view())[1], #claimed > protocol.MOST_MOVES and 1 or 0, returned }
