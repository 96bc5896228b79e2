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
-- fast path: it is in a minimum lane (`minimums`). The caller's job is in its lane, so it is the admitted job.
local function sublane_of(text, type, lane)
    local sublane = key_state.sublane_of(type, lane, text)
    return not sublane.is_first and sublane
end

-- Returns the tenant's key as job `id` specifies it, if that is the job's only key, or nil.
local function only_tenant_key(id)
    local stated = id_suffix.has_only_tenant(id) and key_state.keys_of(id)[1]
    return stated and stated.tenant and stated or nil
end

-- Returns the field of a sub-lane in the hash of an unread key, or false if the key is reserved for a type
-- (`key_turns`). Reads two fields instead of the whole hash.
local function unreserved_field(job_key, type, lane)
    local values = redis.call("HMGET", key.key_state(job_key), type .. " " .. lane, "turn")
    return not values[2] and values[1]
end

-- Returns true if the sub-lane is unbounded and the key is not reserved for a type. Reads the whole key.
local function is_unbounded_in(job_key, type, lane)
    local state = key_state.read(job_key)
    local sublane = state.sublanes[type .. " " .. lane]
    return sublane and sublane.is_unbounded and not state.turn
end

-- Returns true if job `id` in its lane can start on the fast path. Records the match in `passes`: the key as the job
-- specifies it, and the job's sub-lane, false if it is unbounded. If the job is then claimed, the server function calls
-- `hold` next.
function fast_path.passes(id, type, lane)
    local keys, stated = key_state.cache(), only_tenant_key(id)
    local is_unbounded, sublane = false, false
    if stated then
        local job_key = stated.key
        local text = not keys.known[job_key] and unreserved_field(job_key, type, lane)
        is_unbounded = unbounded.is_value(text)
        if keys.known[job_key] or is_unbounded and not unbounded.is_current(text, stated.tenant) then
            is_unbounded = is_unbounded_in(job_key, type, lane)
        elseif text and not is_unbounded and not key_state.is_paused(job_key)
            and fast_path.has_capacity(stated.tenant, job_key) then
            sublane = sublane_of(text, type, lane)
        end
    end
    keys.passes = (is_unbounded or sublane) and { stated = stated, sublane = sublane } or false
    return keys.passes ~= false
end

-- Admits the next job of `sublane` after its first job `id` was claimed. Returns false if the sub-lane is empty.
local function admit_next(job_key, sublane, id)
    local type, lane = sublane.type, sublane.lane
    local sublane_key = key.key_queue(job_key, type, lane)
    redis.call("ZREM", sublane_key, id)
    local first, enqueued, second = unpack(corrupt.first_of(sublane_key, 2))
    if not first then
        return false
    end
    key_steps.unblock(first, type, lane, second ~= nil)
    lanes.add(first, type, lane, enqueued)
    hooks.enters_lane(first, type, lane, enqueued)
    redis.call("HSET", key.key_state(job_key), type .. " " .. lane,
        enqueued .. " " .. first .. key_state.standing_text(first, false))
    return true
end

-- Lets the claimed job `id`, already removed from its lane, hold its key if it passed the preceding `passes`.
-- Returns true if it passed.
function fast_path.hold(id, type, lane, fence)
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

-- unbounded: handles tenants that block no job. Such a tenant has no minimum, is not paused, and fair shares are off.
-- It has no maximum, or at most that many jobs wait for its key or hold it. Only a new job raises this number: a claim
-- turns a waiting job into a holder. A sub-lane that begins in this time is unbounded: all its jobs are also in the
-- lane, and none has a separate admission. The sub-lane's field in the key's hash is "*", followed by the maximum if
-- there is one. A claim only removes the job from the sub-lane and lets it hold the key; the key is not re-evaluated.
-- All unbounded sub-lanes of the key become bounded when a job exceeds the maximum. The same happens when the key is
-- read after a pause or a change of settings that forbids them. The first job of each sub-lane is admitted. The others
-- are blocked in several invocations, youngest first. Field "+type lane" of the key's hash has the number of first jobs
-- that may still have to be blocked. A claim of one of them first checks whether the job may start (`hooks.may_start`).
--
-- Cost: four commands per claim, O(log n). With a maximum, a new job costs one command per sub-lane; a key with more
-- than MAX_SUBLANES sub-lanes becomes bounded without a count.
local STAR = 42 -- the byte of "*"
local UNCOUNTED = "*-" -- an unbounded sub-lane of a key whose jobs must be counted

-- Returns true if `text` is the field value of an unbounded sub-lane.
function unbounded.is_value(text)
    return string.byte(text or "") == STAR
end

local field_texts = memo.cache() -- formatting a number costs as much as a fifth of a command

-- Returns the field value of an unbounded sub-lane whose key has the maximum `max`.
local function text_of(max)
    return field_texts.of[max] or memo.keep(field_texts, max, max == math.huge and "*" or "*" .. max)
end

-- Returns true if the field value `text` means unbounded under the present settings of tenant `name`.
function unbounded.is_current(text, name)
    local max = tenants.max_unbounded(name)
    return max > 0 and text == text_of(max)
end

-- Returns the number of waiting jobs and holders up to which the tenant's key blocks no job.
local function max_of(state)
    return state.is_paused and 0 or tenants.max_unbounded(state.tenant)
end

-- Returns true if at most `max` jobs wait for a key or hold it, including `added` new ones.
local function is_below_max(job_key, state, max, added)
    if max == math.huge or max == 0 then
        return max > 0
    end
    local sublane_keys = {}
    for _, sublane in pairs(state.sublanes) do
        sublane_keys[#sublane_keys + 1] = key.key_queue(job_key, sublane.type, sublane.lane)
    end
    if #sublane_keys > protocol.MAX_SUBLANES then
        return false
    end
    local number = added + key_state.held(job_key, state)
    for _, sublane_key in ipairs(sublane_keys) do
        number = number + redis.call("ZCARD", sublane_key)
    end
    return number <= max
end

-- Makes the unbounded sub-lane `name` of a key bounded.
local function bound(job_key, state, name)
    local sublane = state.sublanes[name]
    local sublane_key = key.key_queue(job_key, sublane.type, sublane.lane)
    local first, enqueued = unpack(corrupt.first_of(sublane_key, 1))
    if not first then -- another client deleted it
        key_state.end_sublane(job_key, state, name)
        return
    end
    sublane.first, sublane.enqueued, sublane.standing = first, enqueued, first
    sublane.is_unbounded, sublane.is_changed = false, true
    state.unkept[name] = redis.call("ZCARD", sublane_key)
end

-- Keeps the unbounded sub-lanes of a key, with `max` in its hash, or makes them bounded. They stay unbounded if at most
-- `max` jobs wait for the key or hold it, including `added` new ones. Returns true if they stay unbounded. The caller
-- re-evaluates the key.
local function apply_max(job_key, state, max, added)
    local stays_unbounded = is_below_max(job_key, state, max, added)
    local has_new_max = stays_unbounded and state.unbounded ~= text_of(max)
    state.unbounded = stays_unbounded and text_of(max) or nil
    for name, sublane in pairs(state.sublanes) do
        if sublane.is_unbounded and not stays_unbounded then
            bound(job_key, state, name)
        elseif sublane.is_unbounded and has_new_max then
            sublane.is_changed = true
        end
    end
    return stays_unbounded
end

-- Checks the unbounded sub-lanes of a key that was just read against a new maximum or a pause.
function unbounded.check(job_key, state)
    local max = max_of(state)
    if state.unbounded ~= text_of(max) then
        apply_max(job_key, state, max, 0)
    end
end

-- Marks a key whose holders or waiting jobs a repair has changed: its next reader counts them.
function unbounded.mark_for_count(job_key)
    local fields = redis.call("HGETALL", key.key_state(job_key))
    for i = 1, #fields, 2 do
        if unbounded.is_value(fields[i + 1]) then
            redis.call("HSET", key.key_state(job_key), fields[i], UNCOUNTED)
        end
    end
end

-- Prepares a key for a new job in a sub-lane.
--   sublane: the sub-lane if it begins with this job, or false.
function unbounded.admit(job_key, state, sublane)
    local stays_unbounded = apply_max(job_key, state, max_of(state), 1)
    if sublane then
        sublane.is_unbounded, sublane.is_changed = stays_unbounded, stays_unbounded
    end
end

-- Returns the tenant's key as job `id` specifies it, or nil. The key must be the job's only key, and must not be
-- reserved for a type. The sub-lane must exist and be unbounded. Without a maximum, two fields usually suffice.
local function unbounded_key_of(id, type, lane)
    local stated = only_tenant_key(id)
    local max = stated and tenants.max_unbounded(stated.tenant) or 0
    if max == 0 then
        return nil
    end
    local is_read = max < math.huge or key_state.cache().known[stated.key]
    local is_unbounded = not is_read and unreserved_field(stated.key, type, lane) == text_of(max)
        or is_unbounded_in(stated.key, type, lane)
    return is_unbounded and stated or nil
end

-- Adds a job with keys to its unbounded sub-lane and to its lane. Returns true if it has such a sub-lane that stays
-- unbounded.
--   heads: the heads of its type, or nil if the caller has not read them.
function unbounded.enter(id, type, lane, enqueued, heads)
    local stated = unbounded_key_of(id, type, lane)
    local state = stated and key_state.cache().known[stated.key]
    if not stated or state and (state.sublanes[type .. " " .. lane].is_changed -- otherwise the sub-lane is not written
        or not is_below_max(stated.key, state, max_of(state), 1)) then
        return false
    end
    redis.call("ZADD", key.key_queue(stated.key, type, lane), enqueued, id)
    lanes.add(id, type, lane, enqueued, heads)
    hooks.enters_lane(id, type, lane, enqueued)
    return true
end

-- Blocks jobs of a formerly unbounded sub-lane, except the admitted one, as the budget of the invocation permits.
-- Returns the number of first jobs that remain.
local function block_some(job_key, sublane, number)
    local budget = key_state.budget()
    local remaining = math.max(0, number - budget.to_keep_back)
    budget.to_keep_back = budget.to_keep_back - (number - remaining)
    if remaining == number then
        return remaining
    end
    local sublane_key = key.key_queue(job_key, sublane.type, sublane.lane)
    local jobs = redis.call("ZRANGE", sublane_key, remaining, number - 1, "WITHSCORES")
    local old_heads = lanes.heads_of(sublane.type)
    local heads = old_heads
    for i = #jobs - 1, 1, -2 do
        local id, enqueued = jobs[i], jobs[i + 1]
        if id ~= sublane.standing then
            hooks.leaves_lane(id, sublane.type, sublane.lane)
            heads = lanes.take_out(id, sublane.type, sublane.lane, heads)
            key_steps.block(id, sublane.type, sublane.lane, enqueued)
        end
    end
    if heads ~= old_heads then
        lanes.write(sublane.type, heads)
    end
    return remaining
end

-- Continues to block jobs in the formerly unbounded sub-lanes of a key.
function unbounded.block(job_key, state)
    for name, number in pairs(state.unkept) do
        local budget = block_some(job_key, state.sublanes[name], number)
        if budget > 0 then
            redis.call("HSET", key.key_state(job_key), "+" .. name, budget)
            state.unkept[name] = budget
            admission.continue_later(job_key)
        else
            redis.call("HDEL", key.key_state(job_key), "+" .. name)
            state.unkept[name] = nil
        end
    end
end
