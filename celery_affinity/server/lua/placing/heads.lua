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

-- RETURNS the place of the head of `lane`.
function lanes.place(heads, lane)
    return (string.find(" " .. heads, " " .. lane .. " ", 1, true))
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

-- RETURNS for each of `types` the value of its field in the hash `name`, false if there is none; then that of the field
-- `more`, if that is given.
function lanes.fields(name, types, more)
    if #types < protocol.MOST_UNPACKED then
        local some = { unpack(types) }
        some[#some + 1] = more
        return redis.call("HMGET", name, unpack(some))
    end
    local values = {}
    for first = 1, #types, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #types)
        for _, value in ipairs(redis.call("HMGET", name, unpack(types, first, last))) do
            values[#values + 1] = value
        end
    end
    values[#values + 1] = more and redis.call("HGET", name, more)
    return values
end

-- RETURNS those of `types` that have a pending job, each once; a table: type -> its heads; and whether there are rules
-- of types.
function lanes.heads(types)
    local waiting, heads = {}, {}
    local values = #types > 0 and lanes.fields(key.heads, types, "!") or {}
    for nth, type in ipairs(types) do
        if values[nth] and not heads[type] then
            waiting[#waiting + 1], heads[type] = type, values[nth]
        end
    end
    return waiting, heads, values[#types + 1]
end

-- Removes `job`, whose head is in `heads`, from its lane. RETURNS the heads after that. The caller writes them.
function lanes.pop(job, heads)
    redis.call("ZREM", key.lane(job.type, job.lane), job.id)
    local last = job.place + #job.lane + #job.enqueued + #job.id + 1
    return lanes.with_new_head(job.type, job.lane, heads, job.place, last)
end
