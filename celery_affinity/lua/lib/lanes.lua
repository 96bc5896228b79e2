-- lanes: the waiting jobs of one (type, mode, priority), first in first out.
-- `heads` keeps the first job of every lane of a type in one field, "lane enqueued id ...": a claim reads all its
-- candidates at once. Here the heads of one type stay such a text: a versatile worker has hundreds to look through.
local lanes = {}
local CHUNK = 1000 -- `unpack` fails near 8,000 values

function lanes.name(mode, priority)
    return mode .. "." .. priority
end

-- RETURNS whether jobs of `lane` are on demand, and their priority.
function lanes.kind(lane)
    local mode, priority = string.match(lane, "^(%a+)%.(%d+)$")
    return mode == "demand", tonumber(priority)
end

-- RETURNS an iterator over lane, enqueued, id.
function lanes.each(heads)
    return string.gmatch(heads, "(%S+) (%S+) (%S+)")
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

-- RETURNS type -> its field in the hash `name`, for those of `types` that have one.
local function fields(name, types)
    local values = {}
    for first = 1, #types, CHUNK do
        local last = math.min(first + CHUNK - 1, #types)
        local found = redis.call("HMGET", name, unpack(types, first, last))
        for i, value in ipairs(found) do
            if value then
                values[types[first + i - 1]] = value
            end
        end
    end
    return values
end

-- RETURNS type -> its heads, for those of `types` that have a waiting job.
function lanes.heads(types)
    return fields(key.heads, types)
end

-- RETURNS type -> slots of live workers that serve it, for those of `heads` that are served.
function lanes.capacity(heads)
    local types = {}
    for type in pairs(heads) do
        types[#types + 1] = type
    end
    return fields(key.capacity, types)
end

-- Writes the heads of `type`, once for all that was taken from its lanes.
function lanes.write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.heads, type)
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

-- Takes the first job, `id`, out of `lane`. RETURNS the heads of its type after that. The caller writes them.
function lanes.take(type, lane, id, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    return lanes.look(type, lane, heads)
end
