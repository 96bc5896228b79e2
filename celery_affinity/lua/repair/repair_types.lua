-- repair_types: what follows from the lanes of a type: its heads, and how many calls wait.
local MOST_LIMITED = 1000 -- claims of a type that is limited

-- Adds the jobs of heads that wait, and are in no lane, to their lanes: an arrow that failed had popped them.
local function put_back_what_waits(type)
    for its_lane, its_enqueued, id in lanes.each(redis.call("HGET", key.heads, type) or "") do
        if repair_jobs.fix_batch(id) then
            redis.call("HSET", key.job(id), "state", "pending", "lane", its_lane, "enqueued", its_enqueued)
        end
        local state, of_type, lane, enqueued, deliveries =
            rebuild.fields(key.job(id), "state", "type", "lane", "enqueued", "deliveries")
        if state == "pending" and of_type == type and corrupt.can_wait(type, lane, enqueued, deliveries) then
            rebuild.one("zset", key.lane(type, lane), id, rebuild.any_or(its_enqueued))
        end
    end
end

-- Frees claims that a limit or a reserve of the type counts, and that are none.
local function fix_limited(type)
    for _, id in ipairs(rebuild.members(key.limited(type), MOST_LIMITED)) do
        if rebuild.fields(key.job(id), "limited") ~= "1"
            and rebuild.found("job " .. id .. ", counted by the limit of type " .. type) then
            type_limits.free(type, id)
        end
    end
end

-- Has the metrics of a type have field `published` if live workers serve the type, and only then: a publish goes by it.
function repair_types.fix_published(type)
    local now, before = rebuild.fields(key.metrics(type), "published", "published before")
    local is_served = rebuild.fields(key.capacity, type)
    if (is_served and before or not is_served and now) and rebuild.found("published jobs of type " .. type) then
        redis.call("EXPIRE", key.metrics(type), protocol.METRICS_KEPT_S) -- as without workers
        workers.note_served(type, is_served)
    end
end

-- RETURNS the head of a lane as key `heads` has it; "" if the lane is empty.
local function head_of(type, lane)
    local name = key.lane(type, lane)
    local id, time = unpack(redis.call("ZRANGE", name, 0, 0, "WITHSCORES"))
    if not id or corrupt.is_entry(id, time) then
        return id and lane .. " " .. time .. " " .. id or ""
    elseif call.found then
        rebuild.found(id .. " of " .. name .. ", which is no job that waits since " .. time)
        return ""
    end
    id, time = unpack(corrupt.first_of(name, 1))
    return id and lane .. " " .. time .. " " .. id or ""
end

-- Fixes heads, which may stand in any order, in a field of hash `name`. `type`: that of the lanes; of first lanes
-- (`minimums`) and near lanes (`locality`) one that no job has. `names`: of the lanes; nil for all. RETURNS whether the
-- heads differed.
function repair_types.fix_heads(name, field, type, names)
    return rebuild.one("hash", name, field, function(found)
        local heads, expected = {}, {}
        for _, lane in ipairs(names or lanes.NAMES) do
            local head = head_of(type, lane)
            if head ~= "" and not expected[head] then
                heads[#heads + 1], expected[head] = head, true
            end
        end
        local text = table.concat(heads, " ")
        local is_good = #text == #(found or "")
        for lane, enqueued, id in lanes.each(found or "") do
            is_good = is_good and expected[lane .. " " .. enqueued .. " " .. id]
        end
        return is_good and found or text ~= "" and text
    end)
end

-- Counts the calls of a type that wait in batches, unless very many jobs wait: then another repair does. `places`: the
-- keys of its lanes, and of the jobs that keys of rules keep out of these.
local function fix_waiting_calls(type, places)
    local calls, left = 0, protocol.MOST_RECOUNTED
    for _, place in ipairs(places) do
        left = left - redis.call("ZCARD", place)
    end
    if left < 0 then
        return
    end
    for _, place in ipairs(places) do
        for _, id in ipairs(redis.call("ZRANGE", place, 0, -1)) do
            local is_batch = id_suffix.of(id) == protocol.BATCH and rebuild.exists(key.callers(id), "zset")
            calls = calls + (is_batch and batch_calls.beyond_one(id) or 0)
        end
    end
    rebuild.one("hash", key.waiting_calls, type, calls > 0 and calls)
end

-- Fixes what follows from the lanes of a type; if `thorough`, also the first jobs of its lanes: of each lane as many as
-- a call moves, if there are few lanes.
local function fix_type(type, thorough)
    rebuild.all("hash", key.metrics(type), rebuild.whole)
    repair_types.fix_published(type)
    fix_limited(type)
    put_back_what_waits(type)
    local names, places, fields = lanes.NAMES, {}, {}
    for nth, lane in ipairs(names) do
        fields[nth] = type .. " " .. lane
        for _, place in ipairs({ key.lane(type, lane), key.kept_back(type, lane) }) do
            if rebuild.exists(place, "zset") then
                places[#places + 1] = place
                repair_keyed.fix_place(place, type, lane)
            end
        end
    end
    for _, lane in ipairs(thorough and names or {}) do -- these are written without a look at what they hold
        rebuild.exists(key.first_lane(type, lane), "zset")
        rebuild.exists(key.turns(type, lane, tenants.shares() or ""), "zset")
    end
    for _, place in ipairs(thorough and places or {}) do
        repair_jobs.fix_all(rebuild.members(place, math.max(1, math.floor(3 * protocol.MOST_MOVES / #places))))
    end
    for nth, found in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
        local is_kept = redis.call("EXISTS", key.kept_back(type, names[nth])) == 1
        rebuild.entry("hash", key.kept_lanes, fields[nth], found, is_kept and found)
    end
    repair_types.fix_heads(key.heads, type, type)
    fix_waiting_calls(type, places)
    call.to_fill[type] = true
end

-- Types are found in these hashes, each of whose fields begins with a type.
local HASHES = { "heads", "capacity", "kept_lanes", "waiting_calls" }

-- Fixes the type of `field`, which was `found_in` a hash, unless an earlier hash has the field too: then it is done.
function repair_types.fix(field, found_in, thorough)
    local type = string.match(field, "^%S+") or ""
    if field == "!" then
        return -- that of `heads` says whether there are rules
    elseif not validate.is_type(type) or type ~= field and found_in ~= "kept_lanes" then
        rebuild.one("hash", key[found_in], field, nil)
        return
    end
    for _, name in ipairs(HASHES) do
        if name == found_in then
            fix_type(type, thorough)
        elseif redis.call("HEXISTS", key[name], type) == 1 then
            return
        end
    end
end
