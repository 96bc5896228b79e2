-- replay: dead -> pending, because a person asked for it: as if it were published now, its deliveries forgotten, and
-- whatever would have ended it while it waited. One whose message is gone stays where it is.
-- RETURNS {more, replayed id, ...}
-- Cost: at most MOST_MOVES jobs in one call, by the caller.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include jobs/come_back.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua

-- ARGV[1..]: job ids
local now = clock.now
local types, replayed = {}, {}
for _, id in ipairs(ARGV) do
    local row = redis.call("HMGET", key.job(id), "state", "type", "lane", "stamps", "expires")
    local can_wait = spoiled.can_wait(row[2], row[3], now, "0")
    if row[1] == "dead" and can_wait and redis.call("EXISTS", key.message(id)) == 1 then
        redis.call("ZREM", key.dead, id)
        redis.call("ZREM", key.untold, id)
        find_by.fade(id, row[4], row[5])
        redis.call("HDEL", key.job(id), "reason", "why", "ended", "acked", "left", "tries", "expires",
            "stamps")
        redis.call("HSET", key.job(id), "state", "pending", "enqueued", now, "deliveries", 0)
        lanes.add(id, row[2], row[3], now)
        types[#types + 1] = row[2]
        replayed[#replayed + 1] = id
    end
end
return { fill(types, "", read_settings(), free_slots.view())[1], unpack(replayed) }
