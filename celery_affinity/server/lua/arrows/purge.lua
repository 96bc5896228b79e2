-- purge: deletes jobs of a type that wait, because a person asked for it: pending jobs, and the scheduled jobs that are
-- named.
-- RETURNS {deleted, again}; again 1: call again, more jobs are pending.
-- Cost: at most MOST_PURGED jobs of each kind in one call.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include placing/heads.lua
-- @include jobs/find_by.lua

local type = ARGV[1] -- encoded
-- ARGV[2..]: ids of scheduled jobs, MOST_PURGED at most

local deleted = 0
local function forget(id)
    find_by.remove(id, 0)
    redis.call("UNLINK", key.job(id), key.message(id))
end

for i = 2, #ARGV do
    local state, its_type = unpack(redis.call("HMGET", key.job(ARGV[i]), "state", "type"))
    if state == "scheduled" and its_type == type then
        redis.call("ZREM", key.scheduled, ARGV[i])
        forget(ARGV[i])
        deleted = deleted + 1
    end
end

local of_lanes = 0
local heads = redis.call("HGET", key.heads, type) or ""
for lane, enqueued, first_id in lanes.each(heads) do
    local ids = redis.call("ZRANGE", key.lane(type, lane), 0, protocol.MOST_PURGED - of_lanes - 1)
    redis.call("ZREMRANGEBYRANK", key.lane(type, lane), 0, #ids - 1)
    local first = string.find(heads, lane .. " " .. enqueued .. " " .. first_id, 1, true)
    heads = lanes.with_new_head(type, lane, heads, first, first + #lane + #enqueued + #first_id + 1)
    for _, id in ipairs(ids) do
        forget(id)
    end
    of_lanes = of_lanes + #ids
    if of_lanes == protocol.MOST_PURGED then
        break
    end
end
lanes.rewrite(type, heads)
return { deleted + of_lanes, heads ~= "" and of_lanes == protocol.MOST_PURGED and 1 or 0 }
