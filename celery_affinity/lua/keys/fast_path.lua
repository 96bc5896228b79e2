-- fast_path: a short way for claims and ends of tenants that have room for several jobs more, and no minimum. A claim then
-- changes which job stands in the sub-lane of the claimed job alone, where the next job stands from then on; and an end
-- changes nothing. So the tenant's other sub-lanes are neither read nor written. In an unbounded sub-lane (`unbounded`)
-- no job stands, and a claim only takes the job out.
-- Cost: of a claim four commands, or about ten if jobs are kept back; O(log n).
local ROOM = 3 -- for so many jobs, before a claim or after an end: then all types have room, whichever has a turn

-- RETURNS whether tenant `name` has no minimum, and room for ROOM more jobs. `was_claimed`: a job was claimed just now
-- and is among the holders: the room before that claim counts. `its`: what the call has read of the tenant's key, or
-- nil.
function fast_path.has_capacity(name, its_key, its, was_claimed)
    local quota = tenants.quota_of(name)
    return quota.min == 0 and (quota.max == math.huge
        or quota.max - (its and its.held or redis.call("ZCARD", key.held(its_key))) >= ROOM - (was_claimed and 1 or 0))
end

-- RETURNS the sub-lane that `text`, its field in the hash of a key, describes; false unless the short way is open to
-- its standing job: the job is in no first lane (`minimums`), and has a turn of this era, or none while tenants go by
-- age. The function does not check which job stands: the caller's job is in its lane, so that job does.
local function sublane_of(text, type, lane)
    local sublane = key_state.sublane_of(type, lane, text)
    return not sublane.is_first and sublane.turn == (tenants.shares()) and sublane
end

-- Reads two fields of the hash of a tenant's key, which this call has not read, to learn whether a job may start the
-- short way. `stated`: what the job says of the key.
-- RETURNS a table: `stated`, and the job's sub-lane, false for an unbounded one; or false if these fields do not let
-- the job start. A second value: whether the field says that the sub-lane is unbounded, but for outdated settings: then
-- the caller reads the whole key.
local function passing_by_text(stated, type, lane)
    local row = redis.call("HMGET", key.of_key(stated.key), type .. " " .. lane, "turn")
    local text, turn = row[1], row[2]
    if turn or not text then
        return false, false
    elseif unbounded.is_one(text) then
        local is_so = unbounded.says(text, stated.tenant)
        return is_so and { stated = stated, sublane = false }, not is_so
    end
    local sublane = not key_state.is_paused(stated.key) and fast_path.has_capacity(stated.tenant, stated.key)
        and sublane_of(text, type, lane)
    return sublane and { stated = stated, sublane = sublane }, false
end

-- RETURNS whether job `id`, which is in its lane, may start the short way. The call keeps how (`passes`): if the job is
-- claimed, `hold` is next.
function fast_path.passes(id, type, lane)
    local keys = key_state.cache()
    local stated = id_suffix.has_only_tenant(id) and key_state.keys_of(id)[1]
    keys.passes = false
    if not stated or not stated.tenant then
        return false
    end
    local is_stale = false
    if not keys.known[stated.key] then
        keys.passes, is_stale = passing_by_text(stated, type, lane)
    end
    if is_stale or keys.known[stated.key] then
        local its = key_state.read(stated.key)
        local sublane = its.sublanes[type .. " " .. lane]
        keys.passes = sublane ~= nil and sublane.is_unbounded and not its.turn
            and { stated = stated, sublane = false }
    end
    return keys.passes ~= false
end

-- Has the next job of `sublane`, whose first job `id` was claimed, stand. RETURNS whether there is one.
local function go_on(its_key, sublane, id)
    local type, lane = sublane.type, sublane.lane
    local place = key.sublane(its_key, type, lane)
    fair_share.revoke_admission(sublane, id, sublane.enqueued)
    redis.call("ZREM", place, id)
    local first, enqueued, second = unpack(corrupt.first_of(place, 2))
    if not first then
        return false
    end
    key_steps.unblock(first, type, lane, second ~= nil)
    hooks.enters_lane(first, type, lane, enqueued)
    lanes.add(first, type, lane, enqueued)
    fair_share.give_turn(its_key, sublane, first, enqueued)
    redis.call("HSET", key.of_key(its_key), type .. " " .. lane,
        enqueued .. " " .. first .. key_state.standing_text(first, false, sublane.turn))
    return true
end

-- Job `id`, of which `passes` was asked last, was popped from its lane and claimed. If it passed, it holds its key.
-- RETURNS whether it passed. `is_out_of_turn`: as `hooks.hold` has it.
function fast_path.hold(id, type, lane, fence, is_out_of_turn)
    local keys = key_state.cache()
    local passing = keys.passes
    if not passing then
        return false
    end
    keys.passes = false
    local its_key = passing.stated.key
    local has_more
    key_state.hold(passing.stated, id, fence)
    if passing.sublane then
        fair_share.charge(its_key, id, type, not is_out_of_turn)
        has_more = go_on(its_key, passing.sublane, id)
    else
        local place = key.sublane(its_key, type, lane)
        redis.call("ZREM", place, id)
        has_more = redis.call("EXISTS", place) == 1
    end
    if not has_more then
        key_state.end_sublane(its_key, key_state.read(its_key), type .. " " .. lane)
        admission.reevaluate_soon(its_key)
        admission.reevaluate_all(false)
    end
    return true
end
