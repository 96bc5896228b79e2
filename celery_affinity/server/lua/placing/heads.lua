-- heads: reads the first jobs of all lanes of some types, among which a claim chooses, and pops one.
-- @include placing/lanes.lua

-- RETURNS whether jobs of `lane` are on demand, and their priority.
function lanes.kind(lane)
    local mode, priority = string.match(lane, "^(%a+)%.(%d+)$")
    return mode == "demand", tonumber(priority)
end

-- RETURNS an iterator over lane, enqueue time and id of each head.
function lanes.each(heads)
    return string.gmatch(heads, "(%S+) (%S+) (%S+)")
end

-- RETURNS lane, enqueue time and id of the head that begins at `place`.
function lanes.at(heads, place)
    return string.match(heads, "^(%S+) (%S+) (%S+)", place)
end

-- RETURNS whether a head begins at `place`.
function lanes.has_one_at(heads, place)
    return (place == 1 or string.sub(heads, place - 1, place - 1) == " ")
        and string.find(heads, "^%a+%.%d+ %d+ %S", place) ~= nil
end

-- RETURNS the job whose head begins at `place` in the heads of `type`, which is the `nth` of the caller's types.
function lanes.job(type, heads, place, nth)
    local lane, enqueued, id = lanes.at(heads, place)
    return { type = type, lane = lane, enqueued = enqueued, id = id, place = place, nth = nth }
end

-- RETURNS for each of `types` the value of its field in the hash `name`; false if there is none.
function lanes.fields(name, types)
    local values = redis.call("HMGET", name, unpack(types, 1, math.min(protocol.MOST_UNPACKED, #types)))
    for first = protocol.MOST_UNPACKED + 1, #types, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #types)
        for _, value in ipairs(redis.call("HMGET", name, unpack(types, first, last))) do
            values[#values + 1] = value
        end
    end
    return values
end

-- RETURNS those of `types` that have a pending job, each once, and a table: type -> its heads.
function lanes.heads(types)
    local waiting, heads = {}, {}
    for nth, value in ipairs(#types > 0 and lanes.fields(key.heads, types) or {}) do
        local type = types[nth]
        if value and not heads[type] then
            waiting[#waiting + 1], heads[type] = type, value
        end
    end
    return waiting, heads
end

-- Removes `job`, whose head is in `heads`, from its lane. RETURNS the heads after that. The caller writes them.
function lanes.pop(job, heads)
    redis.call("ZREM", key.lane(job.type, job.lane), job.id)
    local last = job.place + #job.lane + #job.enqueued + #job.id + 1
    return lanes.with_new_head(job.type, job.lane, heads, job.place, last)
end
