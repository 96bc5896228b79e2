-- lanes: adds jobs to lanes and removes them. A lane has the waiting jobs of one type, mode and priority, first in
-- first out. Key `heads` keeps the first job of every lane of a type in one field, "lane enqueued id ...": a claim
-- reads all its candidates with one command. Scripts leave these heads a text: a versatile worker has hundreds to
-- search.
-- A reason for the length: this is all that writes key `lane` and key `heads`, in the order of what it calls.
local BLANK = 32 -- the byte
local D = 100 -- the byte with which the name of an on-demand lane begins

-- Mode -> priority -> name of the lane.
local names = { queued = {}, demand = {} }

-- RETURNS the name of the lane of jobs with this mode and priority.
function lanes.name(mode, priority)
    local name = names[mode][priority]
    if not name then
        name = mode .. "." .. priority
        names[mode][priority] = name
    end
    return name
end

-- RETURNS whether `lane` is the name of a lane.
function lanes.is_one(lane)
    return string.find(lane or "", "^%l+%.%d%d?$") ~= nil
end

-- Returns, as a string, the time that orders a job in its lane: the end of the job's last pause (field `rank`), or the
-- enqueue time if there was no pause.
function lanes.order(enqueued, rank)
    return rank and #rank <= protocol.LONGEST_NUMBER and string.find(rank, "^%d+$") and rank or enqueued
end

-- RETURNS where the head of `lane` begins and ends in `heads`, its enqueue time, and its id; nil if the lane has no
-- head. An id may look like the name of a lane: no time follows it.
local function find(heads, lane)
    local name, first = lane .. " ", 0
    while true do
        first = string.find(heads, name, first + 1, true)
        if not first then
            return nil
        elseif first == 1 or string.byte(heads, first - 1) == BLANK then
            local _, last, enqueued, id = string.find(heads, "^%S+ (%d+) (%S+)", first)
            if last then
                return first, last, enqueued, id
            end
        end
    end
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

-- RETURNS whether a claim that is under way has the heads of `type`, and writes them in the end.
local function claim_has_heads_of(type)
    local claiming = call.claiming
    if not claiming then
        return false
    end
    for _, each in ipairs(claiming.types) do
        if each == type then
            return claiming.limits[type] ~= "closed"
        end
    end
    return false
end

-- RETURNS the heads of `type`; "" for none.
function lanes.heads_of(type)
    if claim_has_heads_of(type) then
        return call.claiming.heads[type] or ""
    end
    return redis.call("HGET", key.heads, type) or ""
end

-- Writes the heads of `type`.
function lanes.write(type, heads)
    if claim_has_heads_of(type) then
        queue_heads.moved(call.claiming, type, heads)
    elseif heads == "" then
        redis.call("HDEL", key.heads, type)
    else
        redis.call("HSET", key.heads, type, heads)
    end
end

-- RETURNS whether a job is older than another one, as `score.is_older` does, by times that are texts, mostly of one
-- length.
local function is_earlier(enqueued, id, others_enqueued, others_id)
    if #enqueued == #others_enqueued and enqueued ~= others_enqueued then
        return enqueued < others_enqueued
    end
    return score.is_older(tonumber(enqueued), id, tonumber(others_enqueued), others_id)
end

-- RETURNS true if a glance shows that the head of `lane` in `heads` is older than `enqueued`, as mostly; false if
-- `find` has to tell.
local function has_older(heads, lane, enqueued)
    local first, last = string.find(heads, lane, 1, true)
    local its = first and (first == 1 or string.byte(heads, first - 1) == BLANK)
        and string.match(heads, "^ (%d+) ", last + 1)
    return its and #its == #enqueued and its < enqueued
end

-- Adds a job to its lane. RETURNS the `heads` of its type after that, which the caller writes.
function lanes.with(id, type, lane, enqueued, heads)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    if has_older(heads, lane, enqueued) then
        return heads
    end
    local first, last, head_enqueued, head_id = find(heads, lane)
    if not first or is_earlier(enqueued, id, head_enqueued, head_id) then
        return with_head(heads, first, last, lane, enqueued, id)
    end
    return heads
end

-- Adds a job to its lane. `heads`: the heads of its type, if they are known. The caller says so to `hooks.enters_lane`,
-- unless the job has no rules.
function lanes.add(id, type, lane, enqueued, heads)
    heads = heads or lanes.heads_of(type)
    local after = lanes.with(id, type, lane, enqueued, heads)
    if after ~= heads then
        lanes.write(type, after)
    end
end

-- Returns `heads` with the first job of `lane` instead of the head from `first` to `last`, for the caller to write.
-- Also returns the enqueue time of that job, or nil if the lane is empty. `its_key`: the key of the lane, if known.
-- `is_corrupt`: whether to check the whole lane. Otherwise a fast check of the id must do: it finds spaces, and
-- separators at the beginning. An id with another separator is cut when the heads are read, so `lanes.pop` does not
-- find it.
function lanes.with_new_head(type, lane, heads, first, last, its_key, is_corrupt)
    its_key = its_key or key.lane(type, lane)
    local first_job = redis.call("ZRANGE", its_key, "0", "0", "WITHSCORES")
    local id, enqueued = first_job[1], first_job[2]
    if enqueued and (is_corrupt or id < "!" or string.find(id, " ", 1, true) or not string.find(enqueued, "^%d+$")) then
        id, enqueued = unpack(corrupt.first_of(its_key, 1))
    end
    return with_head(heads, first, last, lane, enqueued, id), enqueued
end

-- Removes any job from its lane. RETURNS the `heads` of its type after that, which the caller writes.
function lanes.without(id, type, lane, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    local first, last, _, head_id = find(heads, lane)
    if head_id == id then
        return (lanes.with_new_head(type, lane, heads, first, last))
    end
    return heads
end

-- Removes any job from its lane.
function lanes.remove(id, type, lane)
    local heads = lanes.heads_of(type)
    hooks.leaves_lane(id, type, lane)
    local after = lanes.without(id, type, lane, heads)
    if after ~= heads then
        lanes.write(type, after)
    end
end

-- RETURNS whether jobs of `lane` are on demand.
function lanes.is_on_demand(lane)
    return string.byte(lane) == D
end

-- RETURNS the priority of the jobs of `lane`.
function lanes.priority(lane)
    return tonumber(string.match(lane, "%d+$"))
end

-- RETURNS the number of a lane: its priority, that of an on-demand lane from 11 on.
function lanes.number(lane)
    return lanes.priority(lane) + (lanes.is_on_demand(lane) and protocol.MAX_PRIORITY + 1 or 0)
end

-- RETURNS whether one of the heads is of a job on demand. The text alone may be part of an id.
function lanes.has_demand(heads)
    return string.find(heads, "demand.", 1, true) ~= nil
        and (string.find(heads, "^demand%.") or string.find(heads, " demand%.%d+ %d")) ~= nil
end

-- RETURNS an iterator over lane, enqueue time and id of each head.
function lanes.each(heads)
    return string.gmatch(heads, "(%l+%.%d+) (%d+) (%S+)")
end

-- RETURNS lane, enqueue time and id of the head that begins at `place`.
function lanes.at(heads, place)
    return string.match(heads, "^(%l+%.%d+) (%d+) (%S+)", place)
end

-- RETURNS the place of the head of `lane`.
function lanes.place(heads, lane)
    return (find(heads, lane))
end

-- RETURNS the job whose head begins at `place` in the heads of `type`, which is the `nth` of the caller's types.
function lanes.job(type, heads, place, nth)
    local lane, enqueued, id = lanes.at(heads, place)
    return { type = type, lane = lane, enqueued = enqueued, id = id, place = place, nth = nth }
end

-- Does what `lanes.job` does. RETURNS nil if no head begins there.
function lanes.checked_job(type, heads, place, nth)
    local lane, enqueued, id = string.match(heads, "^(%a+%.%d+) (%d+) (%S+)", place)
    if not lane or place > 1 and string.byte(heads, place - 1) ~= BLANK then
        return nil
    end
    return { type = type, lane = lane, enqueued = enqueued, id = id, place = place, nth = nth }
end

-- RETURNS the job of the only head in the heads of `type`; nil if there are more, or none.
function lanes.only_job(type, heads)
    local lane, enqueued, id = string.match(heads, "^(%l+%.%d+) (%d+) (%S+)$")
    return lane and { type = type, lane = lane, enqueued = enqueued, id = id, place = 1, nth = 1 }
end

-- RETURNS for each of `types` the value of its field in the hash `name`, false if there is none.
function lanes.fields(name, types)
    if #types <= protocol.MOST_UNPACKED then
        return redis.call("HMGET", name, unpack(types))
    end
    local values = {}
    for first = 1, #types, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #types)
        for _, value in ipairs(redis.call("HMGET", name, unpack(types, first, last))) do
            values[#values + 1] = value
        end
    end
    return values
end

-- RETURNS those of `types` that have a pending job, each once; a table: type -> its heads; and what field "!" says of
-- rules of types.
function lanes.heads(types)
    local values
    if #types == 0 then
        return {}, {}
    elseif #types < protocol.MOST_UNPACKED then
        values = redis.call("HMGET", key.heads, "!", unpack(types))
    else
        values = lanes.fields(key.heads, types)
        table.insert(values, 1, redis.call("HGET", key.heads, "!"))
    end
    if #types == 1 and values[2] then
        return types, { [types[1]] = values[2] }, values[1]
    end
    local waiting, number, heads = { nil, nil, nil, nil }, 0, {} -- with places for some types
    for nth, type in ipairs(types) do
        local its_heads = values[nth + 1]
        if its_heads and not heads[type] then
            number = number + 1
            waiting[number], heads[type] = type, its_heads
        end
    end
    return waiting, heads, values[1]
end

-- Removes `job`, whose head is in `heads`, from its lane. RETURNS the heads after that, which the caller writes, and
-- the enqueue time of the lane's new head; nil if there is none; and whether the job was in the lane. `place`,
-- `its_key`: of another lane, in which the job is as well.
function lanes.pop(job, heads, place, its_key)
    place, its_key = place or job.place, its_key or key.lane(job.type, job.lane)
    local was_there = redis.call("ZREM", its_key, job.id) == 1
    local last = place + #job.lane + #job.enqueued + #job.id + 1
    if not was_there then
        last = (string.find(heads, " ", last + 1, true) or #heads + 1) - 1 -- the rest of an id that was cut
    end
    local after, next_enqueued =
        lanes.with_new_head(job.type, job.lane, heads, place, last, its_key, not was_there)
    return after, next_enqueued, was_there
end
