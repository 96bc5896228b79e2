-- lanes: mends the lanes and the heads of types, some in a call.
-- A reason for the length: a lane and its head are mended together.
-- @include placing/heads.lua
-- @include repair/jobs.lua
local MOST_TYPES = 20

-- RETURNS the types that have pending jobs, or workers, in their order.
local function known_types()
    local types, seen = {}, {}
    for _, name in ipairs({ key.heads, key.capacity }) do
        for _, type in ipairs(redis.call("HKEYS", name)) do
            if not seen[type] then
                types[#types + 1], seen[type] = type, true
            end
        end
    end
    table.sort(types)
    return types
end

-- Adds the jobs of `heads` that wait, and are in no lane, to their lanes: a script that failed had popped them.
local function put_back_what_waits(type, heads)
    for _, enqueued, id in lanes.each(heads) do
        if has_type(key.job(id), "hash") then
            local state, its_type, lane, its_enqueued, deliveries =
                unpack(redis.call("HMGET", key.job(id), "state", "type", "lane", "enqueued", "deliveries"))
            if state == "pending" and its_type == type and spoiled.can_wait(type, lane, its_enqueued, deliveries)
                and not redis.call("ZSCORE", key.lane(type, lane), id) then
                redis.call("ZADD", key.lane(type, lane), enqueued, id)
                spoiled.record("job " .. id .. ", which was in no lane")
            end
        end
    end
end

-- RETURNS the names of all lanes of a type.
local function lane_names()
    local names = {}
    for _, mode in ipairs({ "queued", "demand" }) do
        for priority = 0, protocol.MAX_PRIORITY do
            names[#names + 1] = lanes.name(mode, priority)
        end
    end
    return names
end

-- RETURNS whether two texts have the same heads, in any order.
local function have_same_heads(text, other)
    local expected, number = {}, 0
    for lane, enqueued, id in lanes.each(text) do
        expected[lane .. " " .. enqueued .. " " .. id] = true
    end
    for lane, enqueued, id in lanes.each(other) do
        number = number + (expected[lane .. " " .. enqueued .. " " .. id] and 0 or 1)
    end
    return number == 0 and #text == #other
end

local function mend_lanes(type, thorough)
    local before, heads = redis.call("HGET", key.heads, type) or "", {}
    for _, lane in ipairs(lane_names()) do
        has_type(key.lane(type, lane), "zset")
    end
    put_back_what_waits(type, before)
    for _, lane in ipairs(lane_names()) do
        local head = lanes.with_new_head(type, lane, "", 1, 0)
        if head ~= "" then
            heads[#heads + 1] = head
            if thorough then -- as many as a call moves
                mend_jobs(redis.call("ZRANGE", key.lane(type, lane), 0, protocol.MOST_MOVES - 1))
            end
        end
    end
    local text = table.concat(heads, " ")
    if not have_same_heads(text, before) then
        lanes.rewrite(type, text, before)
        spoiled.record("the heads of type " .. type .. ", made again")
    end
end

-- Mends the lanes of types from the position `from` on. RETURNS the position to go on from, nil if those were all; and
-- the types.
local function mend_types(from, thorough)
    local types, mended = known_types(), {}
    for i = from + 1, math.min(#types, from + MOST_TYPES) do
        mended[#mended + 1] = types[i]
        mend_lanes(types[i], thorough)
    end
    return from + MOST_TYPES < #types and from + MOST_TYPES or nil, mended
end
