-- minimums: a tenant that holds fewer slots than its minimum (setting `tenants`) goes first: its jobs that stand go
-- before all others, whatever their score. They are in their lanes like others, and beside these in first lanes: a
-- first lane is the lane of a type named "key:first:" and the type, and key `first_heads` has the heads of these by
-- type, as key `heads` has those of all. Field "!first" of key `type_rules` says that there are any: a claim without
-- them need not look.
-- Cost: about three commands for each job that comes into a first lane or leaves it; O(log n).
local FIRST, ANY = "key:first:", "!first"

-- RETURNS the type whose lanes are the first lanes of `type`.
function minimums.place_of(type)
    return FIRST .. type
end

-- Writes the first heads of `type`. Says in key `type_rules` whether there are any of any type.
local function write(type, heads)
    if heads == "" then
        redis.call("HDEL", key.first_heads, type)
        if redis.call("EXISTS", key.first_heads) == 0 then
            hooks.say_to_claims(ANY, false)
        end
    elseif redis.call("HSET", key.first_heads, type, heads) == 1 then
        hooks.say_to_claims(ANY, 1)
    end
end

-- Adds job `id` to its first lane, in which it waits since `enqueued`; without a time, removes the job from there.
local function move(id, type, lane, enqueued)
    local place, before = minimums.place_of(type), redis.call("HGET", key.first_heads, type) or ""
    local after = enqueued and lanes.with(id, place, lane, enqueued, before) or lanes.without(id, place, lane, before)
    if after ~= before then
        write(type, after)
    end
    key_state.cache().first_heads_changed = true
end

-- Has the job that stands for a tenant in `sublane` go first, or no more.
function minimums.change(its_key, sublane, is_first)
    local id = sublane.standing
    move(id, sublane.type, sublane.lane, is_first and key_state.enqueued_of(its_key, sublane, id))
    sublane.is_first, sublane.is_changed = is_first, true
end

-- The job that stands for a tenant in `sublane` is about to do so no more.
function minimums.revoke_admission(its_key, sublane)
    if sublane.is_first then
        minimums.change(its_key, sublane, false)
    end
end

-- Has the jobs that stand for a tenant go first while it holds fewer slots than its minimum. Of very many sub-lanes a
-- call changes MOST_OPENED; the next tick goes on.
function minimums.renew(its_key, its)
    if not its.tenant then
        return
    end
    local min = tenants.quota_of(its.tenant).min
    local goes_first, number = min > 0 and key_state.held(its_key, its) < min, 0
    for _, sublane in pairs(its.sublanes) do
        local is_first = goes_first and sublane.standing ~= ""
        if is_first ~= sublane.is_first and number == protocol.MOST_OPENED then
            admission.continue_later(its_key)
            return
        elseif is_first ~= sublane.is_first then
            minimums.change(its_key, sublane, is_first)
            number = number + 1
        end
    end
end

-- RETURNS the first heads of those of `types` that have any, a table: type -> heads; nil if there are none.
function minimums.heads(types)
    local heads
    for nth, text in ipairs(#types > 0 and lanes.fields(key.first_heads, types) or {}) do
        if text then
            heads = heads or {}
            heads[types[nth]] = text
        end
    end
    return heads
end

-- RETURNS the first heads of `types`, if any have changed since the call asked last; else false.
function hooks.first_heads(types)
    local keys = call.keys
    if not (keys and keys.first_heads_changed) then
        return false
    end
    keys.first_heads_changed = false
    return minimums.heads(types) or {}
end

-- RETURNS whether job `id`, which goes first, waits in its lane. If not, somebody deleted the lane: then the job leaves
-- its first lane too.
function hooks.waits_first(id, type, lane)
    if redis.call("ZSCORE", key.lane(type, lane), id) then
        return true
    end
    move(id, type, lane)
    return false
end

-- The field of key `type_rules` that says whether there are first heads.
minimums.ANY = ANY
