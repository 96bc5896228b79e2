-- purge: deletes pending jobs of a type, because a person asked for it.
-- RETURNS {deleted, more}
-- Cost: at most 200 jobs in one call.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/lanes.lua
-- @include lib/tasks.lua

local type = ARGV[1] -- encoded

local MAX = 200
local deleted = 0
local heads = lanes.heads({ type })[type] or {}
for lane in pairs(heads) do
    local ids = redis.call("ZRANGE", key.lane(type, lane), 0, MAX - deleted - 1)
    for i = #ids, 1, -1 do
        lanes.remove(ids[i], type, lane, heads)
        tasks.remove(redis.call("HGET", key.job(ids[i]), "task") or "", ids[i], 0)
        redis.call("UNLINK", key.job(ids[i]), key.message(ids[i]))
        deleted = deleted + 1
    end
    if deleted == MAX then
        break
    end
end
return { deleted, next(heads) and 1 or 0 }
