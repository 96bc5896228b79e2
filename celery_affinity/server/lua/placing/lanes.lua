-- lanes: adds jobs to lanes and removes them. A lane has the waiting jobs of one type, mode and priority, first in
-- first out. Key `heads` keeps the first job of every lane of a type in one field, "lane enqueued id ...": a claim
-- reads all its candidates with one command. Scripts leave these heads a text: a versatile worker has hundreds to
-- search.
-- A reason for the length: this is all that writes key `lane` and key `heads`, in the order of what it calls.
-- @include base/clock.lua
local lanes = {}

-- RETURNS the name of the lane of jobs with this mode and priority.
function lanes.name(mode, priority)
    return mode .. "." .. priority
end

-- RETURNS whether `lane` is the name of a lane.
function lanes.is_one(lane)
    return string.find(lane or "", "^%l+%.%d%d?$") ~= nil
end

-- RETURNS where the head of `lane` begins and ends in `heads`, its enqueue time, and its id; nil if the lane has no
-- head. The dot in a lane's name stands for any character in a pattern, and no name has another one there.
local function find(heads, lane)
    local first, last, enqueued, id = string.find(" " .. heads, " " .. lane .. " (%S+) (%S+)")
    return first, last and last - 1, enqueued, id
end

-- RETURNS heads with another head for `lane`, or without one if `enqueued` is nil. The lane's head so far is from
-- `first` to `last` in `heads`; nil if the lane has none.
local function with_head(heads, first, last, lane, enqueued, id)
    local head = enqueued and lane .. " " .. enqueued .. " " .. id
    if not first then
        return heads == "" and head or heads .. " " .. head
    elseif head then
        return string.sub(heads, 1, first - 1) .. head .. string.sub(heads, last + 1)
    elseif last == #heads then
        return string.sub(heads, 1, math.max(0, first - 2))
    end
    return string.sub(heads, 1, first - 1) .. string.sub(heads, last + 2)
end

-- Writes the heads of `type`, once for all jobs that were popped from its lanes. The caller writes the type's cache in
-- `best_heads`.
function lanes.write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.heads, type)
        redis.call("HDEL", key.leaders, type)
    else
        redis.call("HSET", key.heads, type, heads)
    end
end

-- Writes the heads of `type` and deletes the type's cache in `best_heads`. `before`: the heads until now.
function lanes.rewrite(type, heads, before)
    lanes.write(type, heads)
    if heads ~= "" and before ~= "" then
        redis.call("HDEL", key.leaders, type)
    end
end

-- Adds a job to its lane. RETURNS the `heads` of its type after that, which the caller writes.
function lanes.with(id, type, lane, enqueued, heads)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    local first, last, head_enqueued, head_id = find(heads, lane)
    local enqueued_us, head_us = tonumber(enqueued), tonumber(head_enqueued)
    if not first or enqueued_us < head_us or (enqueued_us == head_us and id < head_id) then
        return with_head(heads, first, last, lane, enqueued, id)
    end
    return heads
end

-- Adds a job to its lane. `heads`: the heads of its type, if they are known.
function lanes.add(id, type, lane, enqueued, heads)
    heads = heads or redis.call("HGET", key.heads, type) or ""
    local after = lanes.with(id, type, lane, enqueued, heads)
    if after ~= heads then
        lanes.rewrite(type, after, heads)
    end
end

-- Gives the time of now to the first jobs of `lane` for which somebody wrote what is no time. RETURNS id and
-- enqueue time of the lane's first job then; nil if there is none, or none is found soon.
local function with_a_time(lane, id)
    for _ = 1, 100 do
        redis.call("ZADD", lane, clock.now, id)
        local enqueued
        id, enqueued = unpack(redis.call("ZRANGE", lane, 0, 0, "WITHSCORES"))
        if not enqueued or string.find(enqueued, "^%d+$") then
            return id, enqueued
        end
    end
    return nil
end

-- RETURNS heads with the job that is the first of `lane` now, instead of the head from `first` to `last`. The caller
-- writes them.
function lanes.with_new_head(type, lane, heads, first, last)
    local id, enqueued = unpack(redis.call("ZRANGE", key.lane(type, lane), 0, 0, "WITHSCORES"))
    if enqueued and not string.find(enqueued, "^%d+$") then
        id, enqueued = with_a_time(key.lane(type, lane), id)
    end
    return with_head(heads, first, last, lane, enqueued, id)
end

-- Removes any job from its lane. RETURNS the `heads` of its type after that, which the caller writes.
function lanes.without(id, type, lane, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    local first, last, _, head_id = find(heads, lane)
    if head_id == id then
        return lanes.with_new_head(type, lane, heads, first, last)
    end
    return heads
end

-- Removes any job from its lane.
function lanes.remove(id, type, lane)
    local heads = redis.call("HGET", key.heads, type) or ""
    local after = lanes.without(id, type, lane, heads)
    if after ~= heads then
        lanes.rewrite(type, after, heads)
    end
end
