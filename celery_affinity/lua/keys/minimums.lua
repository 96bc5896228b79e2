-- minimums: admitted jobs of a tenant below its minimum (setting `tenants`) are claimed before all others, regardless
-- of score. They are listed in their normal lane and also in a minimum lane: the lane of the pseudo-type
-- "key:minimum:<type>". `first_heads` maps each type to the heads of its minimum lanes, as `heads` does for normal
-- lanes. Field "!first" of `type_rules` is set while any minimum lane has jobs, so other claims can skip the lookup.
--
-- Cost: about three commands per job added to or removed from a minimum lane; O(log n).
local PREFIX, ANY = "key:minimum:", "!first"

-- Returns the pseudo-type of the minimum lanes of `type`.
function minimums.place_of(type)
    return PREFIX .. type
end

-- Writes the minimum heads of `type`, and records in `type_rules` whether any type has such heads.
local function write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.minimum_heads, type)
        if redis.call("EXISTS", key.minimum_heads) == 0 then
            hooks.say_to_claims(ANY, false)
        end
    elseif redis.call("HSET", key.minimum_heads, type, heads) == 1 then
        hooks.say_to_claims(ANY, 1)
    end
end

-- Adds job `id`, enqueued at `enqueued`, to its minimum lane; without a time, removes it from there.
local function move(id, type, lane, enqueued)
    local lane_type, before = minimums.place_of(type), redis.call("HGET", key.minimum_heads, type) or ""
    local after = enqueued and lanes.with(id, lane_type, lane, enqueued, before)
        or lanes.without(id, lane_type, lane, before)
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
-- at most MOST_OPENED sub-lanes; the next tick continues.
function minimums.renew(job_key, state)
    if not state.tenant then
        return
    end
    local min = tenants.quota_of(state.tenant).min
    local is_below_min, number = min > 0 and key_state.held(job_key, state) < min, 0
    for _, sublane in pairs(state.sublanes) do
        local is_first = is_below_min and sublane.standing ~= ""
        if is_first ~= sublane.is_first and number == protocol.MOST_OPENED then
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
    for nth, text in ipairs(#types > 0 and lanes.fields(key.minimum_heads, types) or {}) do
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

-- The field of key `type_rules` that is set while there are minimum heads.
minimums.ANY = ANY
