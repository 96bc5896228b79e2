-- lanes: the waiting jobs of one (type, mode, priority), first in first out.
-- `heads` keeps the first job of every lane of a type in one field, so that a claim reads all its candidates at once.
local lanes = {}
local CHUNK = 1000 -- `unpack` fails near 8,000 values

function lanes.name(mode, priority)
    return mode .. "." .. priority
end

local function unpack_heads(type, packed)
    local heads = {}
    for lane, enqueued, id in string.gmatch(packed or "", "(%S+) (%S+) (%S+)") do
        local mode, priority = string.match(lane, "^(%a+)%.(%d+)$")
        heads[lane] = {
            type = type,
            lane = lane,
            id = id,
            enqueued = enqueued,
            enqueued_us = tonumber(enqueued),
            on_demand = mode == "demand",
            priority = tonumber(priority),
        }
    end
    return heads
end

local function write_heads(type, heads)
    local packed = {}
    for lane, head in pairs(heads) do
        packed[#packed + 1] = lane .. " " .. head.enqueued .. " " .. head.id
    end
    if #packed == 0 then
        redis.call("HDEL", key.heads, type)
    else
        table.sort(packed)
        redis.call("HSET", key.heads, type, table.concat(packed, " "))
    end
end

-- RETURNS type -> lane -> head, for those of `types` that have a waiting job.
function lanes.heads(types)
    local heads = {}
    for first = 1, #types, CHUNK do
        local last = math.min(first + CHUNK - 1, #types)
        local packed = redis.call("HMGET", key.heads, unpack(types, first, last))
        for i, value in ipairs(packed) do
            if value then
                local type = types[first + i - 1]
                heads[type] = unpack_heads(type, value)
            end
        end
    end
    return heads
end

function lanes.add(id, type, lane, enqueued)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    local heads = unpack_heads(type, redis.call("HGET", key.heads, type))
    local head = heads[lane]
    local enqueued_us = tonumber(enqueued)
    if not head or enqueued_us < head.enqueued_us or (enqueued_us == head.enqueued_us and id < head.id) then
        heads[lane] = { enqueued = enqueued, id = id }
        write_heads(type, heads)
    end
end

-- Takes `id` out of its lane; `heads` are those of its type, brought up to date.
function lanes.remove(id, type, lane, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    local head = heads[lane]
    if not head or head.id ~= id then
        return
    end
    local first = redis.call("ZRANGE", key.lane(type, lane), 0, 0, "WITHSCORES")
    if first[1] then
        head.id, head.enqueued, head.enqueued_us = first[1], first[2], tonumber(first[2])
    else
        heads[lane] = nil
    end
    write_heads(type, heads)
end
