-- publish: client -> pending, or scheduled if its time is still to come. Places the job at once if a slot is free.
-- A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, more, served}; state 0: known already, 1: pending or placed, 2: scheduled. served 0: it is pending,
-- and no live worker serves its type.
-- Cost: O(log n) in pending jobs. Its first write may be refused by a full server, before anything is written.
-- @include lib/keys.lua
-- @include lib/settings.lua
-- @include lib/tasks.lua
-- @include lib/fill.lua

local id = ARGV[1]
local type = ARGV[2] -- encoded
local mode = ARGV[3] -- "queued" or "demand"
local priority = ARGV[4] -- 0..10, 10 highest
local delay_us = tonumber(ARGV[5]) -- until it is due; the publisher's clock is not asked what time it is
local task_id = ARGV[6] -- encoded; "" if it has none
local task_name = ARGV[7]
local message = ARGV[8] -- as kombu sends it

if redis.call("EXISTS", key.job(id)) == 1 then
    return { 0, 0, 1 }
end

local lane = lanes.name(mode, priority)
local due = clock.text(clock.now_us + math.max(0, delay_us))
redis.call("HSET", key.job(id), "type", type, "lane", lane, "enqueued", due, "deliveries", 0,
    "task", task_id, "name", task_name, "state", delay_us > 0 and "scheduled" or "pending")
redis.call("SET", key.message(id), message)
tasks.add(task_id, id)

if delay_us > 0 then
    redis.call("HSET", key.job(id), "published", clock.text(clock.now_us))
    redis.call("ZADD", key.scheduled, due, id)
    return { 2, 0, 1 }
end
lanes.add(id, type, lane, due)
local live = redis.call("HMGET", key.capacity, type, WITHDRAWN .. type)
if not live[1] and not live[2] then
    redis.call("HINCRBY", key.counters, "unserved", 1)
    return { 1, 0, 0 }
end
return { 1, fill({ type }, "", read_settings(), { [id] = message })[1], 1 }
