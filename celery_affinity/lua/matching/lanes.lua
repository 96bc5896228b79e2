-- lanes: adds jobs to lanes and removes them. A lane has the waiting jobs of one type, mode and priority, first in
-- first out. Key `heads` has the first job of every lane of a type in one field, "lane enqueued id ...". A claim thus
-- reads all its candidates with one command. Server functions search this string without parsing it: a worker with many
-- types has hundreds of heads. The file is long because it contains every write of the keys `lane` and `heads`, in call
-- order.
local SPACE = 32 -- the byte
local DEMAND_BYTE = 100 -- the first byte of an on-demand lane's name

-- Mode -> priority -> lane name.
local names = { queued = {}, demand = {} }

-- Returns the lane name for this mode and priority.
function lanes.name(mode, priority)
    local name = names[mode][priority]
    if not name then
        name = mode .. "." .. priority
        names[mode][priority] = name
    end
    return name
end

function lanes.is_lane(lane)
    return string.find(lane or "", "^%l+%.%d%d?$") ~= nil
end

-- Returns true if a field of a job hash is a time in µs.
local function is_time(field)
    return field and #field <= protocol.MAX_NUMBER_LENGTH and string.find(field, "^%d+$")
end

-- Returns the rank of a job, the time that orders it in its lane, as a string. This is the end of the job's last pause
-- (field `rank`), or the enqueue time if there was no pause, minus its head start (field `head`, see `due_times`).
function lanes.order(enqueued, rank, head)
    local since = is_time(rank) and rank or enqueued
    if since and is_time(head) and is_time(since) then
        return call.text(math.max(0, tonumber(since) - tonumber(head)))
    end
    return since
end

-- Returns the time in µs since which job `id` waits. `rank`: its place in its lane.
function lanes.waits_since(id, rank)
    local head = redis.call("HGET", key.job(id), "head")
    return tonumber(rank) + (is_time(head) and tonumber(head) or 0)
end

-- Returns the first and last position of a lane's head in `heads`, its enqueue time and its id; nil for an empty lane.
-- An id can look like a lane name, but is not followed by a time.
function lanes.place(heads, lane)
    local name, first = lane .. " ", 0
    while true do
        first = string.find(heads, name, first + 1, true)
        if not first then
            return nil
        elseif first == 1 or string.byte(heads, first - 1) == SPACE then
            local _, last, enqueued, id = string.find(heads, "^%S+ (%d+) (%S+)", first)
            if last then
                return first, last, enqueued, id
            end
        end
    end
end

-- Returns `heads` with a new head for `lane`, or without a head if `enqueued` is nil. The present head is from `first`
-- to `last` in `heads`; nil for an empty lane.
local function with_head(heads, first, last, lane, enqueued, id)
    if not first then
        return (heads == "" and "" or heads .. " ") .. lane .. " " .. enqueued .. " " .. id
    elseif enqueued then
        return string.sub(heads, 1, first - 1) .. lane .. " " .. enqueued .. " " .. id .. string.sub(heads, last + 1)
    elseif last == #heads then
        return string.sub(heads, 1, math.max(0, first - 2))
    end
    return string.sub(heads, 1, first - 1) .. string.sub(heads, last + 2)
end

-- Returns true if a claim in progress has the heads of `type` and will write them.
local function holds_heads_of(type)
    local claiming = call.claiming
    if not claiming then
        return false
    end
    for _, claim_type in ipairs(claiming.types) do
        if claim_type == type then
            return claiming.limits[type] ~= "closed"
        end
    end
    return false
end

-- Returns the heads of `type`, or "".
function lanes.heads_of(type)
    if holds_heads_of(type) then
        return call.claiming.heads[type] or ""
    elseif call.shares then
        return redis.call("HGET", key.heads, type) or ""
    end
    local values = redis.call("HMGET", key.heads, type, "!")
    hooks.read_word(values[2])
    return values[1] or ""
end

function lanes.write(type, heads)
    if holds_heads_of(type) then
        queue_heads.change(call.claiming, type, heads)
    elseif heads == "" then
        redis.call("HDEL", key.heads, type)
    else
        redis.call("HSET", key.heads, type, heads)
    end
end

-- Returns true if a job is older than another one. Equals `score.is_older` for times as strings, usually of one length.
local function is_older(enqueued, id, other_enqueued, other_id)
    if #enqueued == #other_enqueued and enqueued ~= other_enqueued then
        return enqueued < other_enqueued
    end
    return score.is_older(tonumber(enqueued), id, tonumber(other_enqueued), other_id)
end

-- Returns true if a quick check shows that the head of `lane` in `heads` is older than `enqueued` (the usual case);
-- false if `lanes.place` must be used.
local function has_older(heads, lane, enqueued)
    local first, last = string.find(heads, lane, 1, true)
    local head_enqueued = first and (first == 1 or string.byte(heads, first - 1) == SPACE)
        and string.match(heads, "^ (%d+) ", last + 1)
    return head_enqueued and #head_enqueued == #enqueued and head_enqueued < enqueued
end

-- Adds a job to its lane. Returns the new `heads` of its type, which the caller writes.
function lanes.insert(id, type, lane, enqueued, heads)
    redis.call("ZADD", key.lane(type, lane), enqueued, id)
    if has_older(heads, lane, enqueued) then
        return heads
    end
    local first, last, head_enqueued, head_id = lanes.place(heads, lane)
    if not first or is_older(enqueued, id, head_enqueued, head_id) then
        return with_head(heads, first, last, lane, enqueued, id)
    end
    return heads
end

-- Adds a job to its lane. The caller also calls `hooks.enters_lane`, unless the job has no rules and tenants have no
-- fair shares.
--   heads: the heads of its type, or nil if the caller has not read them.
function lanes.add(id, type, lane, enqueued, heads)
    heads = heads or lanes.heads_of(type)
    local after = lanes.insert(id, type, lane, enqueued, heads)
    if after ~= heads then
        lanes.write(type, after)
    end
end

-- Returns `heads` with the first job of `lane` instead of the head from `first` to `last`, for the caller to write.
-- Also returns the enqueue time of that job, or nil if the lane is empty.
--   lane_key: the Redis key of the lane, or nil.
--   is_corrupt: true to check the whole lane. Otherwise a fast check of the id must do: it finds spaces, and separators
--     at the beginning. An id with another separator is cut when the heads are read, so `lanes.pop` does not find it.
function lanes.with_new_head(type, lane, heads, first, last, lane_key, is_corrupt)
    lane_key = lane_key or key.lane(type, lane)
    local first_job = redis.call("ZRANGE", lane_key, "0", "0", "WITHSCORES")
    local id, enqueued = first_job[1], first_job[2]
    if enqueued and (is_corrupt or id < "!" or string.find(id, " ", 1, true) or not string.find(enqueued, "^%d+$")) then
        id, enqueued = unpack(corrupt.first_of(lane_key, 1))
    end
    return with_head(heads, first, last, lane, enqueued, id), enqueued
end

-- Removes any job from its lane. Returns the new `heads` of its type, which the caller writes.
function lanes.take_out(id, type, lane, heads)
    redis.call("ZREM", key.lane(type, lane), id)
    local first, last, _, head_id = lanes.place(heads, lane)
    if head_id == id then
        return (lanes.with_new_head(type, lane, heads, first, last))
    end
    return heads
end

-- Removes any job from its lane, and writes the heads.
function lanes.remove(id, type, lane)
    local heads = lanes.heads_of(type)
    hooks.leaves_lane(id, type, lane)
    local after = lanes.take_out(id, type, lane, heads)
    if after ~= heads then
        lanes.write(type, after)
    end
end

function lanes.is_on_demand(lane)
    return string.byte(lane) == DEMAND_BYTE
end

function lanes.priority(lane)
    return tonumber(string.match(lane, "%d+$"))
end

-- Returns the number of a lane: its priority, plus 11 for an on-demand lane.
function lanes.number(lane)
    return lanes.priority(lane) + (lanes.is_on_demand(lane) and protocol.MAX_PRIORITY + 1 or 0)
end

-- Returns true if a head has an on-demand job. The name alone could be part of an id.
function lanes.has_demand(heads)
    return string.find(heads, "demand.", 1, true) ~= nil
        and (string.find(heads, "^demand%.") or string.find(heads, " demand%.%d+ %d")) ~= nil
end

-- Returns an iterator over lane, enqueue time and id of each head.
function lanes.each(heads)
    return string.gmatch(heads, "(%l+%.%d+) (%d+) (%S+)")
end

-- Returns lane, enqueue time and id of the head that begins at `place`.
function lanes.head_at(heads, place)
    return string.match(heads, "^(%l+%.%d+) (%d+) (%S+)", place)
end

-- Returns the job whose head begins at `place` in the heads of `type`, or nil if no head begins there.
--   head: a table with its `place`, `lane` and `enqueued`, if they are known.
function lanes.checked_job(type, heads, place, head)
    local lane, enqueued, id
    if head then
        place, lane, enqueued = head.place, head.lane, head.enqueued
        id = string.match(heads, "^%S+", place + #lane + #enqueued + 2)
    else
        lane, enqueued, id = string.match(heads, "^(%a+%.%d+) (%d+) (%S+)", place)
    end
    if not lane or place > 1 and string.byte(heads, place - 1) ~= SPACE then
        return nil
    end
    return { type = type, lane = lane, enqueued = enqueued, id = id, place = place }
end

-- Returns the job of the only head in the heads of `type`, or nil if the number of heads is not 1.
function lanes.only_job(type, heads)
    local lane, enqueued, id = string.match(heads, "^(%l+%.%d+) (%d+) (%S+)$")
    return lane and { type = type, lane = lane, enqueued = enqueued, id = id, place = 1 }
end

-- Returns the `types` with a pending job (without duplicates), a table (type -> its heads), and field "!", which has
-- the limits of types.
function lanes.heads(types)
    local values
    if #types == 0 then
        return {}, {}
    elseif #types < protocol.MAX_UNPACKED then
        values = redis.call("HMGET", key.heads, "!", unpack(types))
    else
        values = hash.read(key.heads, types)
        table.insert(values, 1, redis.call("HGET", key.heads, "!"))
    end
    if #types == 1 and values[2] then
        return types, { [types[1]] = values[2] }, values[1]
    end
    local waiting, number, heads = { nil, nil, nil, nil }, 0, {} -- preallocated for some types
    for nth = 1, #types do
        local type, type_heads = types[nth], values[nth + 1]
        if type_heads and not heads[type] then
            number = number + 1
            waiting[number], heads[type] = type, type_heads
        end
    end
    return waiting, heads, values[1]
end

-- Removes `job`, whose head is in `heads`, from its lane. Returns the new heads, which the caller writes; the enqueue
-- time of the lane's new head, or nil; and true if the job was in the lane.
--   place, lane_key: of another lane that also has the job, or nil.
function lanes.pop(job, heads, place, lane_key)
    place, lane_key = place or job.place, lane_key or key.lane(job.type, job.lane)
    local was_there = redis.call("ZREM", lane_key, job.id) == 1
    local last = place + #job.lane + #job.enqueued + #job.id + 1
    if not was_there then
        last = (string.find(heads, " ", last + 1, true) or #heads + 1) - 1 -- the rest of an id that was cut
    end
    local after, next_enqueued =
        lanes.with_new_head(job.type, job.lane, heads, place, last, lane_key, not was_there)
    return after, next_enqueued, was_there
end
