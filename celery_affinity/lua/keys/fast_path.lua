-- fast_path: cheaper claims and releases for tenants that have no minimum and capacity for at least SPARE more jobs. A
-- claim then only replaces the admitted job of its own sub-lane, and a release changes nothing. The tenant's other
-- sub-lanes are neither read nor written. In an unbounded sub-lane (`unbounded`) a claim only removes the job.
--
-- Cost: four commands per claim, about ten if the tenant has blocked jobs; O(log n).
local SPARE = 3 -- spare capacity before a claim or after a release: enough for all types, regardless of turns

-- Returns true if tenant `name` has no minimum, and capacity for SPARE more jobs.
--   state: the key's state if this invocation has read it, or nil.
--   was_claimed: true if a job just claimed is among the holders; the capacity before that claim is compared.
function fast_path.has_capacity(name, job_key, state, was_claimed)
    local quota = tenants.quota_of(name)
    return quota.min == 0 and (quota.max == math.huge
        or quota.max - (state and state.held or redis.call("ZCARD", key.held(job_key)))
            >= SPARE - (was_claimed and 1 or 0))
end

-- Returns the sub-lane that `text`, its field in the key's hash, describes, or false if its admitted job cannot use the
-- fast path. The job must not be in a minimum lane (`minimums`). Its start tag must have the present generation, or be
-- absent while tenants have no fair shares. The caller's job is in its lane, so it is the admitted job.
local function sublane_of(text, type, lane)
    local sublane = key_state.sublane_of(type, lane, text)
    return not sublane.is_first and sublane.turn == (tenants.shares()) and sublane
end

-- Checks with two fields of an unread tenant key whether a job can start on the fast path.
--   stated: the key as the job specifies it.
-- Returns a table of `stated` and the job's sub-lane (false if it is unbounded), or false if the job cannot start.
-- Returns a second value: true if the sub-lane is unbounded under outdated settings. The caller then reads the key.
local function match_by_fields(stated, type, lane)
    local values = redis.call("HMGET", key.key_state(stated.key), type .. " " .. lane, "turn")
    local text, turn = values[1], values[2]
    if turn or not text then
        return false, false
    elseif unbounded.is_one(text) then
        local is_current = unbounded.says(text, stated.tenant)
        return is_current and { stated = stated, sublane = false }, not is_current
    end
    local sublane = not key_state.is_paused(stated.key) and fast_path.has_capacity(stated.tenant, stated.key)
        and sublane_of(text, type, lane)
    return sublane and { stated = stated, sublane = sublane }, false
end

-- Returns true if job `id` in its lane can start on the fast path. Records the match in `passes`; if the job is then
-- claimed, the server function calls `hold` next.
function fast_path.passes(id, type, lane)
    local keys = key_state.cache()
    local stated = id_suffix.has_only_tenant(id) and key_state.keys_of(id)[1]
    keys.passes = false
    if not stated or not stated.tenant then
        return false
    end
    local is_stale = false
    if not keys.known[stated.key] then
        keys.passes, is_stale = match_by_fields(stated, type, lane)
    end
    if is_stale or keys.known[stated.key] then
        local state = key_state.read(stated.key)
        local sublane = state.sublanes[type .. " " .. lane]
        keys.passes = sublane ~= nil and sublane.is_unbounded and not state.turn
            and { stated = stated, sublane = false }
    end
    return keys.passes ~= false
end

-- Admits the next job of `sublane` after its first job `id` was claimed. Returns false if the sub-lane is empty.
local function admit_next(job_key, sublane, id)
    local type, lane = sublane.type, sublane.lane
    local sublane_key = key.key_queue(job_key, type, lane)
    fair_share.revoke_admission(sublane, id, sublane.enqueued)
    redis.call("ZREM", sublane_key, id)
    local first, enqueued, second = unpack(corrupt.first_of(sublane_key, 2))
    if not first then
        return false
    end
    key_steps.unblock(first, type, lane, second ~= nil)
    hooks.enters_lane(first, type, lane, enqueued)
    lanes.add(first, type, lane, enqueued)
    fair_share.give_turn(job_key, sublane, first, enqueued)
    redis.call("HSET", key.key_state(job_key), type .. " " .. lane,
        enqueued .. " " .. first .. key_state.standing_text(first, false, sublane.turn))
    return true
end

-- Lets the claimed job `id`, already removed from its lane, hold its key if it passed the preceding `passes`.
-- Returns true if it passed.
--   is_out_of_turn: as in `hooks.hold`.
function fast_path.hold(id, type, lane, fence, is_out_of_turn)
    local keys = key_state.cache()
    local match = keys.passes
    if not match then
        return false
    end
    keys.passes = false
    local job_key = match.stated.key
    local has_more
    key_state.hold(match.stated, id, fence)
    if match.sublane then
        fair_share.charge(job_key, id, type, not is_out_of_turn)
        has_more = admit_next(job_key, match.sublane, id)
    else
        local sublane_key = key.key_queue(job_key, type, lane)
        redis.call("ZREM", sublane_key, id)
        has_more = redis.call("EXISTS", sublane_key) == 1
    end
    if not has_more then
        key_state.end_sublane(job_key, key_state.read(job_key), type .. " " .. lane)
        admission.reevaluate_soon(job_key)
        admission.reevaluate_all(false)
    end
    return true
end
