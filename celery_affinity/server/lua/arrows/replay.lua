-- replay: dead -> pending, because a person asked for it. Jobs wait as if they were published now: their deliveries are
-- forgotten, and so are the stamps and the expiry that would end them. A job whose message is gone stays dead.
-- RETURNS {more, replayed id, ...}; more: as `fill` returns it.
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
    local state, type, lane, stamps, expires =
        unpack(redis.call("HMGET", key.job(id), "state", "type", "lane", "stamps", "expires"))
    local can_wait = spoiled.can_wait(type, lane, now, "0")
    local is_batch = marks.of(id) == protocol.BATCH
    if state == "dead" and can_wait and (is_batch or redis.call("EXISTS", key.message(id)) == 1) then
        redis.call("ZREM", key.dead, id)
        redis.call("ZREM", key.untold, id)
        find_by.fade(id, stamps, expires)
        redis.call("HDEL", key.job(id), "reason", "why", "ended", "acked", "left", "tries", "expires",
            "stamps")
        redis.call("HSET", key.job(id), "state", "pending", "enqueued", now, "deliveries", 0)
        if is_batch then
            of_batch("wait_again", id)
        end
        with_rules.wait(id, type, lane, now)
        types[#types + 1] = type
        replayed[#replayed + 1] = id
    end
end
return { fill(types, "", read_settings(), which_slot.view())[1], unpack(replayed) }
