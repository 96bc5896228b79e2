-- repair_lanes: fixes the lanes and the heads of types, some in a call.
-- A reason for the length: a lane and its head are fixed together.
local LANES_IN_A_PART = 3
local PARTS = 9 -- of the work on a type: its 22 lanes, then its heads
-- Positions in the first of four hashes begin at PLACE_AT, in the second at twice that, ...; of a cursor, at PAGE_AT.
local PLACE_AT = 100000000000
local PAGE_AT = 1000

-- RETURNS the types that have pending jobs, or workers, or calls that wait in batches, in their order.
local function known_types()
    local types, seen = {}, {}
    for _, name in ipairs({ key.heads, key.capacity, key.waiting_calls }) do
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
    for its_lane, enqueued, id in lanes.each(heads) do
        if repair_jobs.fix_batch(id) then
            redis.call("HSET", key.job(id), "state", "pending", "lane", its_lane, "enqueued", enqueued)
        end
        if sound.has_type(key.job(id), "hash") then
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

-- Fixes the types of the keys of `type`, and puts back what waits in no lane.
local function fix_places(type)
    for _, lane in ipairs(lanes.names()) do
        sound.has_type(key.lane(type, lane), "zset")
    end
    if sound.has_type(key.figures(type), "hash") then
        sound.keep_fields(key.figures(type), sound.is_whole)
    end
    local kind = redis.call("TYPE", key.limited(type)).ok
    if kind ~= "none" and not sound.has_type(key.limited(type), "zset") then
        redis.call("SET", key.recount, 0) -- claims are counted again
    end
    for _, id in ipairs(redis.call("ZRANGE", key.limited(type), 0, repair_jobs.MOST_JOBS - 1)) do
        if not sound.has_type(key.job(id), "hash") or redis.call("HGET", key.job(id), "limited") ~= "1" then
            type_rules.free(type, id)
            spoiled.record("job " .. id .. ", counted by the limit of type " .. type)
        end
    end
    put_back_what_waits(type, redis.call("HGET", key.heads, type) or "")
end

-- Makes the heads of a type again, unless they are as they should be, in whatever order.
local function fix_heads(type)
    local before, heads, expected = redis.call("HGET", key.heads, type) or "", {}, {}
    for _, lane in ipairs(lanes.names()) do
        local head = lanes.with_new_head(type, lane, "", 1, 0)
        if head ~= "" then
            heads[#heads + 1], expected[head] = head, true
        end
    end
    local text = table.concat(heads, " ")
    local is_good = #text == #before
    for lane, enqueued, id in lanes.each(before) do
        is_good = is_good and expected[lane .. " " .. enqueued .. " " .. id]
    end
    if not is_good then
        lanes.rewrite(type, text, before)
        spoiled.record("the heads of type " .. type .. ", made again")
    end
end

-- Counts the calls of a type that wait in batches, unless very many jobs wait: then another repair does.
local function fix_waiting_calls(type)
    local places, jobs = {}, 0
    for lane in lanes.each(redis.call("HGET", key.heads, type) or "") do
        places[#places + 1] = key.lane(type, lane)
    end
    local fields = {}
    for nth, lane in ipairs(lanes.names()) do
        fields[nth] = type .. " " .. lane
    end
    for nth, is_kept in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
        places[#places + 1] = is_kept and key.kept_back(type, lanes.names()[nth]) or nil
    end
    for _, place in ipairs(places) do
        jobs = jobs + (sound.has_type(place, "zset") and redis.call("ZCARD", place) or 0)
    end
    if jobs > protocol.MOST_RECOUNTED then
        return
    end
    local calls = 0
    for _, place in ipairs(places) do
        for _, id in ipairs(sound.has_type(place, "zset") and redis.call("ZRANGE", place, 0, -1) or {}) do
            local is_batch = marks.of(id) == protocol.BATCH and sound.has_type(key.callers(id), "zset")
            calls = calls + (is_batch and callers.beyond_one(id) or 0)
        end
    end
    call.looks = call.looks + math.ceil(jobs / protocol.RECOUNTED_IN_A_LOOK)
    local counted = tonumber(redis.call("HGET", key.waiting_calls, type)) or 0
    if counted ~= calls then
        callers.count_waiting(type, calls - counted)
        spoiled.record("the calls of type " .. type .. " that wait, counted again")
    end
end

-- Does a part of the work on a type: some of its lanes; the last part is its heads.
local function fix_part(type, part, thorough)
    call.looks = call.looks + 1
    if part == 0 then
        fix_places(type)
    elseif part == PARTS - 1 then
        fix_heads(type)
        fix_waiting_calls(type)
        return
    end
    local names = lanes.names()
    for nth = part * LANES_IN_A_PART + 1, math.min((part + 1) * LANES_IN_A_PART, #names) do
        repair_keyed_jobs.fix(type, names[nth])
        if thorough then -- as many as a call moves
            repair_jobs.fix_jobs(redis.call("ZRANGE", key.lane(type, names[nth]), 0, protocol.MOST_MOVES - 1))
            call.looks = call.looks + protocol.MOST_MOVES
        end
    end
end

-- Works on `types` from `at` on, which counts parts. Adds to `fixed` those whose last part was done. RETURNS where to
-- go on; nil if those were all.
local function fix_some(types, at, fixed, thorough)
    while types[math.floor(at / PARTS) + 1] do
        if call.looks >= repair_keyed_jobs.MOST_LOOKS then
            return at
        end
        local type = types[math.floor(at / PARTS) + 1]
        fix_part(type, at % PARTS, thorough)
        at = at + 1
        fixed[#fixed + 1] = at % PARTS == 0 and type or nil
    end
    return nil
end

-- Fixes the lanes of some of very many types, in the order of hashes: those in two of these twice. RETURNS what
-- `mend_types` does.
local function fix_types_by_place(from, thorough)
    local MOST_TYPES = 8 -- that are read of a hash at once, or some more
    local places = { key.heads, key.capacity, key.kept_lanes, key.waiting_calls } -- by type first
    local nth, cursor_before = math.floor(from / PLACE_AT), math.floor(from % PLACE_AT / PAGE_AT)
    local cursor, fields = unpack(redis.call("HSCAN", places[nth], call.text(cursor_before), "COUNT", MOST_TYPES))
    local types, fixed = {}, {}
    for i = 1, #fields, 2 do
        local type = string.match(fields[i], "^%S+")
        if type and type ~= "!" then
            types[#types + 1] = type
        end
    end
    local at = fix_some(types, from % PAGE_AT, fixed, thorough)
    if at then
        return nth * PLACE_AT + cursor_before * PAGE_AT + at, fixed
    elseif cursor ~= "0" then
        return nth * PLACE_AT + tonumber(cursor) * PAGE_AT, fixed
    end
    return nth < #places and (nth + 1) * PLACE_AT or nil, fixed
end

-- Fixes the lanes of types from the position `from` on. RETURNS the position to go on from, nil if those were all; and
-- the types whose lanes are done.
function repair_lanes.fix(from, thorough)
    local FEW_TYPES = 1000 -- to be sorted in each call
    if from == 0 and redis.call("HLEN", key.heads) + redis.call("HLEN", key.capacity) > FEW_TYPES then
        from = PLACE_AT
    end
    if from >= PLACE_AT then
        return fix_types_by_place(from, thorough)
    end
    local fixed = {}
    return fix_some(known_types(), from, fixed, thorough), fixed
end
