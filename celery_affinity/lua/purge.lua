-- purge: deletes pending jobs of a type, because a person asked for it.
-- RETURNS {deleted, more}
-- Cost: at most 100 jobs in one call.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/lanes.lua
-- @include lib/traces.lua

local type = ARGV[1] -- encoded

local MAX = 100
local deleted = 0
local heads = lanes.heads({ type })[type] or ""
for lane in lanes.each(heads) do
    local ids = redis.call("ZRANGE", key.lane(type, lane), 0, MAX - deleted - 1)
    redis.call("ZREMRANGEBYRANK", key.lane(type, lane), 0, #ids - 1)
    heads = lanes.look(type, lane, heads)
    for _, id in ipairs(ids) do
        traces.remove(id, 0)
        redis.call("UNLINK", key.job(id), key.message(id))
    end
    deleted = deleted + #ids
    if deleted == MAX then
        break
    end
end
lanes.write(type, heads)
return { deleted, heads ~= "" and 1 or 0 }
