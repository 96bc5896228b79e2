-- heads: the first jobs of all lanes of some types: what a claim looks at.
-- @include lib/lanes.lua
local CHUNK = 1000 -- `unpack` fails near 8,000 values

-- RETURNS whether jobs of `lane` are on demand, and their priority.
function lanes.kind(lane)
    local mode, priority = string.match(lane, "^(%a+)%.(%d+)$")
    return mode == "demand", tonumber(priority)
end

-- RETURNS an iterator over lane, enqueued, id.
function lanes.each(heads)
    return string.gmatch(heads, "(%S+) (%S+) (%S+)")
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

-- Takes the first job, `id`, out of `lane`. RETURNS the heads of its type after that. The caller writes them.
function lanes.take(type, lane, id, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    return lanes.look(type, lane, heads)
end
