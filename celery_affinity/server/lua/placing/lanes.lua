-- lanes: the waiting jobs of one (type, mode, priority), first in first out.
-- `heads` keeps the first job of every lane of a type in one field, "lane enqueued id ...": a claim reads all its
-- candidates at once. Here the heads of one type stay such a text: a versatile worker has hundreds to look through.
-- @include base/clock.lua
local lanes = {}

function lanes.name(mode, priority)
    return mode .. "." .. priority
end

-- RETURNS whether `lane` is the name of one.
function lanes.is_one(lane)
    return string.find(lane or "", "^%l+%.%d%d?$") ~= nil
end

-- RETURNS where the head of `lane` begins and ends in `heads`, when it was enqueued, and its id; nil if it has none.
-- The dot in a lane's name stands for any character in a pattern, and no name has another one there.
local function find(heads, lane)
    local first, last, enqueued, id = string.find(" " .. heads, " " .. lane .. " (%S+) (%S+)")
    return first, last and last - 1, enqueued, id
end

-- RETURNS heads with another head for `lane`, or without one if `enqueued` is nil. Its own is from `first` to `last`
-- there; nil if it has none.
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

-- Writes the heads of `type`, once for all that was taken from its lanes.
function lanes.write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.heads, type)
        redis.call("HDEL", key.leaders, type)
    else
        redis.call("HSET", key.heads, type, heads)
    end
end

-- The same for who takes no note of it: there is none any more. `before`: the heads as they were.
function lanes.rewrite(type, heads, before)
    lanes.write(type, heads)
    if heads ~= "" and before ~= "" then
        redis.call("HDEL", key.leaders, type)
    end
end

-- `heads`: those of its type, if they are known.
function lanes.add(id, type, lane, enqueued, heads)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    heads = heads or redis.call("HGET", key.heads, type) or ""
    local first, last, head_enqueued, head_id = find(heads, lane)
    local enqueued_us, head_us = tonumber(enqueued), tonumber(head_enqueued)
    if not first or enqueued_us < head_us or (enqueued_us == head_us and id < head_id) then
        lanes.rewrite(type, with_head(heads, first, last, lane, enqueued, id), heads)
    end
end

-- Takes any job out of its lane.
function lanes.remove(id, type, lane)
    redis.call("ZREM", key.lane(type, lane), id)
    local heads = redis.call("HGET", key.heads, type) or ""
    local first, last, _, head_id = find(heads, lane)
    if head_id == id then
        lanes.rewrite(type, lanes.look(type, lane, heads, first, last), heads)
    end
end

-- RETURNS the first job of a lane, and when it was enqueued, if somebody wrote what is no time; that is now.
local function with_a_time(lane, next_one)
    for _ = 1, 100 do
        if not next_one[2] or string.find(next_one[2], "^%d+$") then
            return next_one
        end
        redis.call("ZADD", lane, clock.now, next_one[1])
        next_one = redis.call("ZRANGE", lane, 0, 0, "WITHSCORES")
    end
    return {}
end

-- RETURNS heads with what is now the first job of `lane`, for the one from `first` to `last`. The caller writes them.
function lanes.look(type, lane, heads, first, last)
    local next_one = redis.call("ZRANGE", key.lane(type, lane), 0, 0, "WITHSCORES")
    if next_one[2] and not string.find(next_one[2], "^%d+$") then
        next_one = with_a_time(key.lane(type, lane), next_one)
    end
    return with_head(heads, first, last, lane, next_one[2], next_one[1])
end
