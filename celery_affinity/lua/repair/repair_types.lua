-- repair_types: fixes data derived from the lanes of a type: its heads, and the number of waiting calls.
local MAX_LIMITED = 1000 -- claims of a type with a limit

-- Adds the waiting jobs of heads that are missing from their lanes: a failed server function had popped them.
local function restore_popped_jobs(type)
    for head_lane, head_enqueued, id in lanes.each(redis.call("HGET", key.heads, type) or "") do
        if repair_jobs.fix_batch(id) then
            redis.call("HSET", key.job(id), "state", "pending", "lane", head_lane, "enqueued", head_enqueued)
        end
        local state, job_type, lane, enqueued, deliveries =
            rebuild.fields(key.job(id), "state", "type", "lane", "enqueued", "deliveries")
        if state == "pending" and job_type == type and corrupt.can_wait(type, lane, enqueued, deliveries) then
            rebuild.one("zset", key.lane(type, lane), id, rebuild.any_or(head_enqueued))
        end
    end
end

-- Removes counted claims that no longer exist from the limit or reserve of the type.
local function fix_limited(type)
    for _, id in ipairs(rebuild.members(key.type_running(type), MAX_LIMITED)) do
        if rebuild.fields(key.job(id), "limited") ~= "1"
            and rebuild.found("job " .. id .. ", counted by the limit of type " .. type) then
            type_limits.free(type, id)
        end
    end
end

-- Sets field `published` in the metrics of a type if and only if live workers serve the type; a publish depends on it.
function repair_types.fix_published(type)
    local published, saved = rebuild.fields(key.metrics(type), "published", "published before")
    local is_served = rebuild.fields(key.capacity, type)
    if (is_served and saved or not is_served and published) and rebuild.found("published jobs of type " .. type) then
        redis.call("EXPIRE", key.metrics(type), protocol.METRICS_KEPT_S) -- as without workers
        workers.note_served(type, is_served)
    end
end

-- Returns the head of a lane as in key `heads`, or "" if the lane is empty.
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

-- Fixes heads, which can be in any order, in a field of hash `name`. Returns true if the heads differed.
--   type: type of the lanes; a pseudo-type for minimum lanes (`minimums`) and hint lanes (`locality`).
--   names: names of the lanes; nil for all.
function repair_types.fix_heads(name, field, type, names)
    return rebuild.one("hash", name, field, function(stored)
        local heads, expected = {}, {}
        for _, lane in ipairs(names or lanes.NAMES) do
            local head = head_of(type, lane)
            if head ~= "" and not expected[head] then
                heads[#heads + 1], expected[head] = head, true
            end
        end
        local text = table.concat(heads, " ")
        local is_valid = #text == #(stored or "")
        for lane, enqueued, id in lanes.each(stored or "") do
            is_valid = is_valid and expected[lane .. " " .. enqueued .. " " .. id]
        end
        return is_valid and stored or text ~= "" and text
    end)
end

-- Counts the calls of a type that wait in batches. With more than MOST_RECOUNTED jobs, another repair does so.
--   redis_keys: keys of its lanes and of the blocked jobs.
local function fix_waiting_calls(type, redis_keys)
    local calls, remaining = 0, protocol.MOST_RECOUNTED
    for _, redis_key in ipairs(redis_keys) do
        remaining = remaining - redis.call("ZCARD", redis_key)
    end
    if remaining < 0 then
        return
    end
    for _, redis_key in ipairs(redis_keys) do
        for _, id in ipairs(redis.call("ZRANGE", redis_key, 0, -1)) do
            local is_batch = id_suffix.of(id) == protocol.BATCH and rebuild.exists(key.callers(id), "zset")
            calls = calls + (is_batch and batch_calls.beyond_one(id) or 0)
        end
    end
    rebuild.one("hash", key.waiting_calls, type, calls > 0 and calls)
end

-- Fixes data derived from the lanes of a type. If `thorough`, also fixes the first jobs of its lanes: per lane as many
-- as an invocation assigns, if there are few lanes.
local function fix_type(type, thorough)
    rebuild.all("hash", key.metrics(type), rebuild.whole)
    repair_types.fix_published(type)
    fix_limited(type)
    restore_popped_jobs(type)
    local names, redis_keys, fields = lanes.NAMES, {}, {}
    for nth, lane in ipairs(names) do
        fields[nth] = type .. " " .. lane
        for _, redis_key in ipairs({ key.lane(type, lane), key.kept_back(type, lane) }) do
            if rebuild.exists(redis_key, "zset") then
                redis_keys[#redis_keys + 1] = redis_key
                repair_keyed.fix_place(redis_key, type, lane)
            end
        end
    end
    for _, lane in ipairs(thorough and names or {}) do -- server functions write these without reading them
        rebuild.exists(key.minimum_lane(type, lane), "zset")
        rebuild.exists(key.turns(type, lane, tenants.shares() or ""), "zset")
    end
    for _, redis_key in ipairs(thorough and redis_keys or {}) do
        repair_jobs.fix_all(rebuild.members(redis_key, math.max(1, math.floor(3 * protocol.MOST_MOVES / #redis_keys))))
    end
    for nth, stored in ipairs(redis.call("HMGET", key.kept_lanes, unpack(fields))) do
        local is_kept = redis.call("EXISTS", key.kept_back(type, names[nth])) == 1
        rebuild.entry("hash", key.kept_lanes, fields[nth], stored, is_kept and stored)
    end
    repair_types.fix_heads(key.heads, type, type)
    fix_waiting_calls(type, redis_keys)
    call.to_fill[type] = true
end

-- Hashes in which types are found: each field begins with a type.
local HASHES = { "heads", "capacity", "kept_lanes", "waiting_calls" }

-- Fixes the type of `field` in the hash `found_in`, unless an earlier hash has the field too: the type is then done.
function repair_types.fix(field, found_in, thorough)
    local type = string.match(field, "^%S+") or ""
    if field == "!" then
        return -- in `heads`: the indicator of rules
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
