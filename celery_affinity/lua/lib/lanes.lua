-- lanes: the waiting jobs of one (type, mode, priority), first in first out.
-- `heads` keeps the first job of every lane of a type in one field, "lane enqueued id ...": a claim reads all its
-- candidates at once. Here the heads of one type stay such a text: a versatile worker has hundreds to look through.
local lanes = {}

function lanes.name(mode, priority)
    return mode .. "." .. priority
end

-- RETURNS where the head of `lane` begins and ends in `heads`, when it was enqueued, and its id; nil if it has none.
local function find(heads, lane)
    local pattern = " " .. string.gsub(lane, "%.", "%%.") .. " (%S+) (%S+)"
    local first, last, enqueued, id = string.find(" " .. heads, pattern)
    return first, last and last - 1, enqueued, id
end

-- RETURNS heads with another head for `lane`; without one if `enqueued` is nil.
local function with_head(heads, lane, enqueued, id)
    local first, last = find(heads, lane)
    local parts = {}
    local function add(part)
        parts[#parts + 1] = part ~= "" and part or nil
    end
    add(first and string.sub(heads, 1, math.max(0, first - 2)) or heads)
    add(enqueued and lane .. " " .. enqueued .. " " .. id or "")
    add(first and string.sub(heads, last + 2) or "")
    return table.concat(parts, " ")
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

function lanes.add(id, type, lane, enqueued)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    local heads = redis.call("HGET", key.heads, type) or ""
    local first, _, head_enqueued, head_id = find(heads, lane)
    local enqueued_us, head_us = tonumber(enqueued), tonumber(head_enqueued)
    if not first or enqueued_us < head_us or (enqueued_us == head_us and id < head_id) then
        lanes.write(type, with_head(heads, lane, enqueued, id))
    end
end

-- Takes any job out of its lane.
function lanes.remove(id, type, lane)
    redis.call("ZREM", key.lane(type, lane), id)
    local heads = redis.call("HGET", key.heads, type) or ""
    local _, _, _, head_id = find(heads, lane)
    if head_id == id then
        lanes.write(type, lanes.look(type, lane, heads))
    end
end

-- RETURNS heads with what is now the first job of `lane`. The caller writes them.
function lanes.look(type, lane, heads)
    local first = redis.call("ZRANGE", key.lane(type, lane), 0, 0, "WITHSCORES")
    return with_head(heads, lane, first[2], first[1])
end
