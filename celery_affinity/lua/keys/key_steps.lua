-- key_steps: advances an admitted job to the sub-lane of its next key or to its lane, or revokes its admission. Jobs
-- with keys that are not in their lanes are blocked (key `kept_back`).
--
-- Cost: a few commands per job; O(log n).

-- Marks a waiting job outside its lane as blocked.
function key_steps.block(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Removes a job from the blocked jobs. Returns true if it was blocked.
--   is_not_last: true if other jobs of its lane are certainly blocked.
function key_steps.unblock(id, type, lane, is_not_last)
    local was_blocked = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if was_blocked and not is_not_last and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return was_blocked
end

-- Returns the list of the job's keys behind `job_key`, in the job's order; empty for a job with one key.
local function keys_after(job_key, id)
    local after, is_after = {}, false
    for _, stated in ipairs(id_suffix.has_many_keys(id) and key_state.keys_of(id) or {}) do
        after[#after + 1] = is_after and stated or nil
        is_after = is_after or stated.key == job_key
    end
    return after
end

-- Returns true if all `job_keys` admit job `id`.
function key_steps.is_admitted_by(job_keys, id, type, lane)
    for _, stated in ipairs(job_keys) do
        local sublane = key_state.read(stated.key).sublanes[type .. " " .. lane]
        if not sublane or not (sublane.is_unbounded or sublane.standing == id) then
            return false
        end
    end
    return true
end

-- Returns true if the admitted job of `sublane` is in its lane.
function key_steps.is_in_lane(job_key, sublane)
    local id = sublane.standing
    return sublane.is_unbounded
        or id ~= "" and key_steps.is_admitted_by(keys_after(job_key, id), id, sublane.type, sublane.lane)
end

-- Revokes the admission in `sublane`: removes the job from its lane and from the sub-lanes of its later keys.
--   heads: the heads of its type.
-- Returns the heads afterwards.
local function revoke(job_key, sublane, heads)
    local id, type, lane = sublane.standing, sublane.type, sublane.lane
    minimums.revoke_admission(job_key, sublane)
    for _, stated in ipairs(keys_after(job_key, id)) do
        local keys = key_state.cache()
        keys.called_back = keys.called_back or {}
        keys.called_back[id] = true
        key_state.remove(stated.key, key_state.read(stated.key), id, type, lane)
        admission.reevaluate_soon(stated.key)
    end
    hooks.leaves_lane(id, type, lane)
    heads = lanes.without(id, type, lane, heads)
    local enqueued = key_state.enqueued_of(job_key, sublane, id)
    if enqueued then
        fair_share.revoke_admission(sublane, id, enqueued)
        key_steps.block(id, type, lane, enqueued)
    end
    return heads
end

-- Admits job `wanted` ("" for no job) in `sublane` instead of the present one, and advances it.
--   heads: the heads of its type.
-- Returns the heads afterwards, which the caller writes, and true if the job is now in its lane.
function key_steps.admit(job_key, sublane, wanted, heads)
    local type, lane = sublane.type, sublane.lane
    if sublane.standing ~= "" then
        heads = revoke(job_key, sublane, heads)
    end
    sublane.standing, sublane.is_changed = wanted, true
    if wanted == "" then
        return heads, false
    end
    local enqueued, next_key = key_state.enqueued_of(job_key, sublane, wanted), keys_after(job_key, wanted)[1]
    if next_key then
        local state, keys = key_state.read(next_key.key), key_state.cache()
        local belongs_into_lane = key_state.add(next_key.key, state, wanted, type, lane, enqueued)
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
