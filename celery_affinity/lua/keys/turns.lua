-- turns: whose turn it is: a key that is reserved for a type or a retry, and tenants below their minimum.

-- key_turns: reserves a key with capacity for one job if jobs of several types wait for it. A release assigns the key
-- to a job of the same worker in the same invocation. A type whose workers are busy whenever that happens would
-- therefore never get the key. So if the type that has waited longest has waited for more than `key_patience`, the key
-- is reserved for it. This turn ends when one of its jobs gets the key, or after another `key_patience`.

-- Returns true if jobs of `type` can use part of the capacity `free`: the last unit can be reserved for another type.
function key_turns.has_capacity_for_type(type, free, state)
    return free > 1 or (free == 1 and (not state.turn or state.turn == type))
end

-- Returns true if no pause and no limit of the type blocks its jobs.
function key_turns.is_open(type)
    local value, pause_of_all = unpack(redis.call("HMGET", key.type_rules, type, "*"))
    return not (pause_of_all or type_limits.is_closed(type_limits.read(value)))
end

-- Records that a type has had the key, or its turn.
local function record_had(job_key, state, type)
    redis.call("HSET", key.key_state(job_key), "@" .. type, call.now)
    state.had[type] = call.now_us
end

-- Ends the turn of `type` after one of its jobs got the key. Records that the type had the key, if jobs of other types
-- wait.
function key_turns.end_turn(job_key, state, type)
    if state.turn == type then
        key_state.end_reservation(job_key, state, "turn")
    end
    if state.tenant and fast_path.has_capacity(state.tenant, job_key, state, true) then
        return -- no job waits for the key
    end
    for _, sublane in pairs(state.sublanes) do
        if sublane.type ~= type then
            record_had(job_key, state, type)
            break
        end
    end
end

-- Returns true if a job of the type with the turn waits.
local function has_waiting_job(state)
    for _, sublane in pairs(state.sublanes) do
        if sublane.type == state.turn then
            return true
        end
    end
    return false
end

-- Ends a turn in which no job got the key.
--   fills: as in `admission.reevaluate_all`.
local function end_unused(job_key, state, fills)
    record_had(job_key, state, state.turn)
    if fills then
        redis.call("HDEL", key.key_state(job_key), "turn")
        state.turn = nil
    else
        key_state.end_reservation(job_key, state, "turn")
    end
end

-- Ends the turn of a key if its time is over. If no job of the type waits, schedules the key for `end_all_unused`,
-- which ends the turn later in this invocation unless such a job has arrived. Otherwise lets a tick re-evaluate the
-- key when the time is over.
--   fills: as in `admission.reevaluate_all`.
function key_turns.end_turn_unused(job_key, state, fills)
    local began_us, ends_us = tonumber(state.turn_began), tonumber(state.turn_ends)
    if ends_us <= call.now_us or began_us > call.now_us then -- the clock may have been set back
        end_unused(job_key, state, fills)
    elseif not has_waiting_job(state) then
        local keys = key_state.cache()
        keys.in_vain = keys.in_vain or {}
        keys.in_vain[job_key] = true
    elseif ends_us < (tonumber(redis.call("ZSCORE", key.due_keys, job_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, state.turn_ends, job_key)
    end
end

-- Ends the turns of types that still have no waiting job, and schedules the re-evaluation of their keys. Called when no
-- further job can arrive in this invocation.
function key_turns.end_all_unused(fills)
    local keys = key_state.cache()
    if not keys.in_vain then
        return
    end
    for job_key in pairs(keys.in_vain) do
        local state = key_state.read(job_key)
        if state.turn and not has_waiting_job(state) then
            end_unused(job_key, state, fills)
            admission.reevaluate_soon(job_key)
        end
    end
    keys.in_vain = false
end

-- Returns the time in µs since which the first jobs of `type` wait for a key without getting it.
local function waits_since(state, type)
    local since_us = call.now_us
    for _, sublane in pairs(state.sublanes) do
        if sublane.type == type and sublane.first and tonumber(sublane.enqueued) then
            since_us = math.min(since_us, lanes.waits_since(sublane.first, sublane.enqueued))
        end
    end
    return math.max(since_us, state.had[type] or 0)
end

-- Gives the turn to the type whose first job has the earliest rank, if it waited for `key_patience` while others got
-- the key. Called when a job of `freed_type` has released the key. A type without slots, or blocked by a pause or
-- limit, loses its turn: it waits as if it had just had the key.
function key_turns.give_turn(job_key, state, freed_type)
    local best_type, since_us = nil, call.now_us
    for _, sublane in pairs(state.sublanes) do
        local type = sublane.type
        local waits_since_us = math.max(tonumber(sublane.enqueued) or call.now_us, state.had[type] or 0)
        if waits_since_us < since_us or (waits_since_us == since_us and best_type and type < best_type) then
            best_type, since_us = type, waits_since_us
        end
    end
    if not best_type or best_type == freed_type then
        return
    end
    local patience_us = settings_in_force.read().key_patience_us -- 0: turns are off
    if patience_us == 0 or call.now_us - since_us < patience_us then
        return
    end
    if call.now_us - waits_since(state, best_type) < patience_us then
        return
    end
    if (tonumber(redis.call("HGET", key.capacity, best_type)) or 0) > 0 and key_turns.is_open(best_type) then
        state.turn, state.turn_began, state.turn_ends = best_type, call.now, call.text(call.now_us + patience_us)
        redis.call("HSET", key.key_state(job_key), "turn", best_type .. " " .. call.now .. " " .. state.turn_ends)
    else
        record_had(job_key, state, best_type)
    end
end

-- minimums: admitted jobs of a tenant below its minimum (setting `tenants`) are claimed before all others, regardless
-- of score. They are listed in their normal lane and also in a minimum lane: the lane of the pseudo-type
-- "key:minimum:<type>". `minimum_heads` maps each type to the heads of its minimum lanes, as `heads` does for normal
-- lanes. Field "!first" of `type_rules` is set while any minimum lane has jobs, so other claims can skip the lookup.
--
-- Cost: about three commands per job added to or removed from a minimum lane; O(log n).
local PREFIX = "key:minimum:"
minimums.ANY = "!first" -- the field of key `type_rules` that is set while there are minimum heads

-- Returns the pseudo-type of the minimum lanes of `type`.
function minimums.place_of(type)
    return PREFIX .. type
end

-- Writes the minimum heads of `type`, and records in `type_rules` whether any type has such heads.
local function write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.minimum_heads, type)
        if redis.call("EXISTS", key.minimum_heads) == 0 then
            hooks.write_type_rule(minimums.ANY, false)
        end
    elseif redis.call("HSET", key.minimum_heads, type, heads) == 1 then
        hooks.write_type_rule(minimums.ANY, 1)
    end
end

-- Adds job `id`, enqueued at `enqueued`, to its minimum lane; without a time, removes it from there.
local function move(id, type, lane, enqueued)
    local lane_type, before = minimums.place_of(type), redis.call("HGET", key.minimum_heads, type) or ""
    local after = enqueued and lanes.insert(id, lane_type, lane, enqueued, before)
        or lanes.take_out(id, lane_type, lane, before)
    if after ~= before then
        write(type, after)
    end
    key_state.cache().first_heads_changed = true
end

-- Adds the tenant's admitted job in `sublane` to its minimum lane, or removes it from there.
function minimums.change(job_key, sublane, is_first)
    local id = sublane.standing
    move(id, sublane.type, sublane.lane, is_first and key_state.enqueued_of(job_key, sublane, id))
    sublane.is_first, sublane.is_changed = is_first, true
end

-- Removes the job in `sublane`, whose admission is being revoked, from its minimum lane.
function minimums.revoke_admission(job_key, sublane)
    if sublane.is_first then
        minimums.change(job_key, sublane, false)
    end
end

-- Lists a tenant's admitted jobs in minimum lanes while it holds fewer slots than its minimum. One invocation changes
-- at most MAX_OPENED sub-lanes; the next tick continues.
function minimums.renew(job_key, state)
    if not state.tenant then
        return
    end
    local min = tenants.quota_of(state.tenant).min
    local is_below_min, number = min > 0 and key_state.held(job_key, state) < min, 0
    for _, sublane in pairs(state.sublanes) do
        local is_first = is_below_min and sublane.standing ~= ""
        if is_first ~= sublane.is_first and number == protocol.MAX_OPENED then
            admission.continue_later(job_key)
            return
        elseif is_first ~= sublane.is_first then
            minimums.change(job_key, sublane, is_first)
            number = number + 1
        end
    end
end

-- Returns a table of minimum heads: type -> heads, for those `types` that have any; nil if there are none.
function minimums.heads(types)
    local heads
    for nth, text in ipairs(hash.read(key.minimum_heads, types)) do
        if text then
            heads = heads or {}
            heads[types[nth]] = text
        end
    end
    return heads
end

-- Returns the minimum heads of `types` if any have changed since the last call in this invocation, or false.
function hooks.first_heads(types)
    local keys = call.keys
    if not (keys and keys.first_heads_changed) then
        return false
    end
    keys.first_heads_changed = false
    return minimums.heads(types) or {}
end

-- Returns true if job `id` of a minimum lane is also in its lane. Otherwise another client deleted the lane, and the
-- job is removed from its minimum lane.
function hooks.waits_first(id, type, lane)
    if redis.call("ZSCORE", key.lane(type, lane), id) then
        return true
    end
    move(id, type, lane)
    return false
end
