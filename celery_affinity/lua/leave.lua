-- leave: a worker goes. What it still holds is pending again, its age intact; what had been acked is lost.
-- RETURNS {more}; an unknown worker changes nothing.
-- Cost: O(claims of the worker).
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/workers.lua
-- @include lib/back.lua
-- @include lib/fill.lua

local worker = ARGV[1]

if redis.call("EXISTS", key.worker(worker)) == 0 then
    return { 0 }
end
local settings = read_settings()
local types = {}
workers.close(worker)
for _, id in ipairs(redis.call("HKEYS", key.claims(worker))) do
    types[#types + 1] = back.put(worker, id, false, settings)
end
workers.remove(worker)
return { fill(types, "", settings)[1] }
