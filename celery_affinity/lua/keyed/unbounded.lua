-- unbounded: tenants of whose jobs nothing bounds the number: the settings give them neither a maximum nor a minimum,
-- tenants go by age, and the key is not paused. A sub-lane that begins then is unbounded: its jobs are all in their
-- lane as well, and none stands for the others. In the key's hash it has "*". So a claim takes the job out of the
-- sub-lane and has it hold the key; there is nothing to renew.
-- Once something bounds the tenant, the key's next renewal bounds the sub-lane: its first job stands, and all others
-- are kept back, some in each call, the youngest first. Field "+type lane" of the key's hash says how many of its first
-- jobs are still to be kept back. Until then a claim that meets one finds out whether it may start, as of any job.
-- Cost: of a claim four commands, O(log n).
local MOST = 4 * protocol.MOST_OPENED -- jobs that a call keeps back

-- RETURNS what job `id` says of its key if that is the only one, and its sub-lane is unbounded, and nothing bounds it
-- now; else nil. A sub-lane that begins with the job is none yet.
local function stated_by(id, type, lane)
    local stated = marks.has_tenant_alone(id) and key_rows.keys_of(id)[1]
    if not (stated and stated.tenant and tenants.is_unbounded(stated.tenant)) then
        return nil
    end
    local its = key_rows.of_call().known[stated.key]
    if its then
        local sublane = its.sublanes[type .. " " .. lane]
        return sublane and sublane.is_unbounded and not its.turn and stated or nil
    end
    local text, turn = unpack(redis.call("HMGET", key.of_key(stated.key), type .. " " .. lane, "turn"))
    return text == key_rows.UNBOUNDED and not turn and stated or nil
end

-- Adds a job, which has keys, to its unbounded sub-lane and to its lane. `heads`: those of its type, if they are known.
-- RETURNS whether it has such a sub-lane.
function unbounded.enter(id, type, lane, enqueued, heads)
    local stated = stated_by(id, type, lane)
    if stated then
        redis.call("ZADD", key.sublane(stated.key, type, lane), enqueued, id)
        hooks.enters_lane(id, type, lane, enqueued)
        lanes.add(id, type, lane, enqueued, heads)
    end
    return stated ~= nil
end

-- RETURNS whether job `id`, which is in its lane, is in an unbounded sub-lane, and has no other key: then it may start,
-- and `hold` is next.
function unbounded.passes(id, type, lane)
    local stated = stated_by(id, type, lane)
    key_rows.of_call().passes = stated and { id = id, stated = stated }
    return stated ~= nil
end

-- Job `id`, which was popped from its lane, was claimed. If it is the one that passed last, it holds its key. The last
-- job of a sub-lane ends it. RETURNS whether it is.
function unbounded.hold(id, type, lane, fence)
    local keys = key_rows.of_call()
    local stated = keys.passes and keys.passes.id == id and keys.passes.stated
    if not stated then
        return false
    end
    keys.passes = false
    local its_key = stated.key
    local sublane, known = key.sublane(its_key, type, lane), keys.known[its_key]
    redis.call("ZREM", sublane, id)
    redis.call("ZADD", key.held(its_key), fence, id)
    if stated.is_preemptible then
        preemption.hold(id, its_key, fence)
    end
    if known and known.held then
        known.held = known.held + 1
    end
    if redis.call("EXISTS", sublane) == 0 then
        key_rows.end_sublane(its_key, key_rows.read(its_key), type .. " " .. lane)
        key_standing.renew_soon(its_key)
        key_standing.renew_all(false)
    end
    return true
end

-- Bounds the unbounded sub-lane `name` of a key. The caller renews the key.
function unbounded.bound(its_key, its, name)
    local sublane = its.sublanes[name]
    local place = key.sublane(its_key, sublane.type, sublane.lane)
    local first, enqueued = unpack(redis.call("ZRANGE", place, 0, 0, "WITHSCORES"))
    if not first then -- somebody deleted it
        key_rows.end_sublane(its_key, its, name)
        return
    end
    sublane.first, sublane.enqueued, sublane.standing = first, enqueued, first
    sublane.is_unbounded, sublane.is_changed = false, true
    its.unkept[name] = redis.call("ZCARD", place)
end

-- Keeps back some of the jobs of a sub-lane that was bounded, but for the one that stands. RETURNS how many of its
-- first jobs are left.
local function keep_some_back(its_key, sublane, number)
    local from = math.max(0, number - MOST)
    local place = key.sublane(its_key, sublane.type, sublane.lane)
    local jobs = redis.call("ZRANGE", place, from, number - 1, "WITHSCORES")
    local before = lanes.heads_of(sublane.type)
    local heads = before
    for i = #jobs - 1, 1, -2 do
        local id, enqueued = jobs[i], jobs[i + 1]
        if id ~= sublane.standing then
            hooks.leaves_lane(id, sublane.type, sublane.lane)
            heads = lanes.without(id, sublane.type, sublane.lane, heads)
            key_steps.keep_back(id, sublane.type, sublane.lane, enqueued)
        end
    end
    if heads ~= before then
        lanes.write(sublane.type, heads)
    end
    return from
end

-- Goes on with the sub-lanes of a key that were bounded.
function unbounded.keep_back(its_key, its)
    for name, number in pairs(its.unkept) do
        local left = keep_some_back(its_key, its.sublanes[name], number)
        if left > 0 then
            redis.call("HSET", key.of_key(its_key), "+" .. name, left)
            its.unkept[name] = left
            key_standing.go_on_later(its_key)
        else
            redis.call("HDEL", key.of_key(its_key), "+" .. name)
            its.unkept[name] = nil
        end
    end
end
