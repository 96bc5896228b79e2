-- lanes: mends the lanes and the heads of types, some in a call.
-- A reason for the length: a lane and its head are mended together.
-- @include placing/heads.lua
-- @include placing/lane_names.lua
-- @include repair/jobs.lua
-- @include repair/keyed_jobs.lua
local MOST_TYPES = 8
local FEW_TYPES = 1000 -- to be sorted in each call
local PLACE_AT = 100000000 -- positions in the first of three hashes begin here, in the second at twice that, ...

-- RETURNS the types that have pending jobs, or workers, in their order.
local function known_types()
    local types, seen = {}, {}
    for _, name in ipairs({ key.heads, key.capacity }) do
        for _, type in ipairs(redis.call("HKEYS", name)) do
            if type ~= "!" and not seen[type] then
                types[#types + 1], seen[type] = type, true
            end
        end
    end
    for _, place in ipairs(redis.call("HKEYS", key.kept_lanes)) do
        local type = string.match(place, "^%S+")
        if not seen[type] then
            types[#types + 1], seen[type] = type, true
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
    local kind = redis.call("TYPE", key.limited(type)).ok
    if kind ~= "none" and not has_type(key.limited(type), "zset") then
        redis.call("SET", key.recount, 0) -- claims are counted again
    end
    for _, id in ipairs(redis.call("ZRANGE", key.limited(type), 0, MOST_JOBS - 1)) do
        if not has_type(key.job(id), "hash") or redis.call("HGET", key.job(id), "limited") ~= "1" then
            moved = moved or {}
            type_rules.free(type, id)
            spoiled.record("job " .. id .. ", counted by the limit of type " .. type)
        end
    end
    put_back_what_waits(type, before)
    for _, lane in ipairs(lane_names()) do
        mend_keyed_jobs(type, lane)
    end
    before = redis.call("HGET", key.heads, type) or ""
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

-- Mends the lanes of some of very many types, in the order of hashes: those in two of these twice. RETURNS what
-- `mend_types` does.
local function mend_types_by_place(from, thorough)
    local places = { key.heads, key.capacity, key.kept_lanes } -- the fields of each begin with a type
    local nth = math.floor(from / PLACE_AT)
    local cursor, fields = unpack(redis.call("HSCAN", places[nth], from % PLACE_AT, "COUNT", MOST_TYPES))
    local mended = {}
    for i = 1, #fields, 2 do
        local type = string.match(fields[i], "^%S+")
        if type and type ~= "!" then
            mended[#mended + 1] = type
            mend_lanes(type, thorough)
        end
    end
    if cursor ~= "0" then
        return nth * PLACE_AT + tonumber(cursor), mended
    end
    return nth < #places and (nth + 1) * PLACE_AT or nil, mended
end

-- Mends the lanes of types from the position `from` on. RETURNS the position to go on from, nil if those were all; and
-- the types.
local function mend_types(from, thorough)
    if from == 0 and redis.call("HLEN", key.heads) + redis.call("HLEN", key.capacity) > FEW_TYPES then
        from = PLACE_AT
    end
    if from >= PLACE_AT then
        return mend_types_by_place(from, thorough)
    end
    local types, mended = known_types(), {}
    while from + #mended < #types and #mended < MOST_TYPES and looks < MOST_LOOKS do
        mended[#mended + 1] = types[from + #mended + 1]
        mend_lanes(mended[#mended], thorough)
    end
    return from + #mended < #types and from + #mended or nil, mended
end
