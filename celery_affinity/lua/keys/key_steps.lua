-- key_steps: a job that stands for one of its keys takes a step: into the sub-lane of its next key, or into its lane;
-- or it is called back from there. All jobs with keys that are not in their lanes are kept back (key `kept_back`).
-- Cost: some commands for a job; O(log n).

-- Keeps a job back: it waits, and not in its lane.
function key_steps.block(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Keeps a job back no more. RETURNS whether it was kept back. `is_not_last`: whether other jobs of its lane are known
-- to be kept back.
function key_steps.unblock(id, type, lane, is_not_last)
    local was_kept = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if was_kept and not is_not_last and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return was_kept
end

-- RETURNS the keys of job `id` that come after `its_key` in the order of the job, a list; empty for a job with one key.
local function keys_after(its_key, id)
    local after, is_after = {}, false
    for _, stated in ipairs(id_suffix.has_many_keys(id) and key_state.keys_of(id) or {}) do
        after[#after + 1] = is_after and stated or nil
        is_after = is_after or stated.key == its_key
    end
    return after
end

-- RETURNS whether job `id` stands for each of `its_keys`.
function key_steps.is_admitted_by(its_keys, id, type, lane)
    for _, stated in ipairs(its_keys) do
        local sublane = key_state.read(stated.key).sublanes[type .. " " .. lane]
        if not sublane or not (sublane.is_unbounded or sublane.standing == id) then
            return false
        end
    end
    return true
end

-- RETURNS whether a job that stands for a key in `sublane` is in its lane.
function key_steps.is_in_lane(its_key, sublane)
    local id = sublane.standing
    return sublane.is_unbounded
        or id ~= "" and key_steps.is_admitted_by(keys_after(its_key, id), id, sublane.type, sublane.lane)
end

-- The job that stands for a key in `sublane` is to do so no more: removes it from where it went on to. `heads`: those
-- of its type. RETURNS the heads after that.
local function call_back(its_key, sublane, heads)
    local id, type, lane = sublane.standing, sublane.type, sublane.lane
    minimums.revoke_admission(its_key, sublane)
    for _, stated in ipairs(keys_after(its_key, id)) do
        local keys = key_state.cache()
        keys.called_back = keys.called_back or {}
        keys.called_back[id] = true
        key_state.remove(stated.key, key_state.read(stated.key), id, type, lane)
        admission.reevaluate_soon(stated.key)
    end
    hooks.leaves_lane(id, type, lane)
    heads = lanes.without(id, type, lane, heads)
    local enqueued = key_state.enqueued_of(its_key, sublane, id)
    if enqueued then
        fair_share.revoke_admission(sublane, id, enqueued)
        key_steps.block(id, type, lane, enqueued)
    end
    return heads
end

-- Has job `wanted`, "" for none, stand for a key in `sublane` instead of the job that does, and go on. `heads`: those
-- of its type. RETURNS the heads after that, which the caller writes; and whether the job is in its lane now.
function key_steps.admit(its_key, sublane, wanted, heads)
    local type, lane = sublane.type, sublane.lane
    if sublane.standing ~= "" then
        heads = call_back(its_key, sublane, heads)
    end
    sublane.standing, sublane.is_changed = wanted, true
    if wanted == "" then
        return heads, false
    end
    local enqueued, next_key = key_state.enqueued_of(its_key, sublane, wanted), keys_after(its_key, wanted)[1]
    if next_key then
        local its, keys = key_state.read(next_key.key), key_state.cache()
        local belongs_into_lane = key_state.add(next_key.key, its, wanted, type, lane, enqueued)
        admission.reevaluate_soon(next_key.key)
        if keys.has_left and not (keys.called_back and keys.called_back[wanted]) then
            keys.advanced[wanted] = type .. " " .. lane
        end
        if not belongs_into_lane then
            return heads, false
        end
    end
    key_steps.unblock(wanted, type, lane, sublane.has_more)
    hooks.enters_lane(wanted, type, lane, enqueued)
    return lanes.with(wanted, type, lane, enqueued, heads), true
end
