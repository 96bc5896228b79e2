-- publish: client -> pending, or scheduled if its time is still to come. Places the job at once if a slot is free.
-- A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, more, served}; state 0: known already, 1: pending or placed, 2: scheduled, 3: revoked before, or
-- expired. served 0: it is pending, and no live worker serves its type.
-- Cost: O(log n) in pending jobs. Its first write may be refused by a full server, before anything is written.
-- @include lib/keys.lua
-- @include lib/settings.lua
-- @include lib/ends.lua
-- @include lib/fill.lua

local id = ARGV[1]
local type = ARGV[2] -- encoded
local mode = ARGV[3] -- "queued" or "demand"
local priority = ARGV[4] -- 0..10, 10 highest
local delay_us = tonumber(ARGV[5]) -- until it is due; the publisher's clock is not asked what time it is
local task_id = ARGV[6] -- encoded; "" if it has none
local task_name = ARGV[7]
local expires_us = ARGV[8] -- until it expires; "" for never
local stamps = ARGV[9] -- "name:value", encoded, separated by blanks
local message = ARGV[10] -- as kombu sends it

if redis.call("EXISTS", key.job(id)) == 1 then
    return { 0, 0, 1 }
end

local lane = lanes.name(mode, priority)
local due = clock.text(clock.now_us + math.max(0, delay_us))
redis.call("HSET", key.job(id), "type", type, "lane", lane, "enqueued", due, "deliveries", 0,
    "task", task_id, "name", task_name, "state", delay_us > 0 and "scheduled" or "pending")
redis.call("SET", key.message(id), message)
local is_expired = expires_us ~= "" and tonumber(expires_us) <= 0
local is_revoked = traces.is_revoked(task_id, stamps)
traces.add(id, task_id, stamps, expires_us ~= "" and clock.text(clock.now_us + tonumber(expires_us)) or "")
if is_expired or is_revoked then
    ends.note(id, is_revoked and "revoked" or "expired")
    return { 3, 0, 1 }
end

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
