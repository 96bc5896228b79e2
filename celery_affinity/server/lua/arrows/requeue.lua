-- requeue: claimed -> pending, with the first enqueue time; the slot is free again.
-- RETURNS {more}; a stale fencing number changes nothing.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include jobs/come_back.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua
-- @include jobs/claims.lua

local worker = ARGV[1]
local counted = ARGV[2] == "1" -- whether this was a delivery: a drain is none
-- ARGV[3..]: job id, fencing number of each

local settings = read_settings()
local types = workers.types_of(worker)
for i = 3, #ARGV, 2 do
    if claims.held(worker, ARGV[i], ARGV[i + 1]) then
        types[#types + 1] = come_back.put(worker, ARGV[i], counted, settings)
    end
end
free_slots.recount(worker)
return { fill(types, "", settings, free_slots.view())[1] }
