-- unbounded: a tenant that keeps no job back. The tenant has no minimum, goes by age, is not paused, and has no
-- maximum; or its maximum is not below the number of its jobs that wait for its key or hold the key. Only a job that
-- comes raises this number: a claim turns a job that waits into a holder.
-- A sub-lane that begins meanwhile is unbounded: all its jobs are in the lane as well, and no job stands for the
-- others. The field of the sub-lane in the key's hash is "*", and behind that the maximum, if there is one. A claim
-- only takes the job out of the sub-lane and has the job hold the key: no key is renewed.
-- Once a job comes that is one too many, or settings or a pause forbid this when the key is read, all unbounded
-- sub-lanes of the key are bounded: the first job of each stands, and the others are kept back, the youngest first,
-- some in each call. Field "+type lane" of the key's hash has the number of first jobs in the sub-lane among which
-- these calls still go on. A claim of one of these asks meanwhile whether the job may start (`hooks.may_start`).
-- Cost: of a claim four commands, O(log n). With a maximum, a job that comes costs one command for each sub-lane; a key
-- with more than MOST_SUBLANES sub-lanes is bounded without a count.
local STAR = 42 -- the byte of "*"
local IN_DOUBT = "*-" -- an unbounded sub-lane of a key whose jobs are to be counted

-- RETURNS whether `text` is what a key's hash has of an unbounded sub-lane.
function unbounded.is_one(text)
    return string.byte(text or "") == STAR
end

local written = memo.cache() -- the text of a number costs as much as a fifth of a command

-- RETURNS what the hash has if `most` jobs may wait for the key and hold it.
local function text_of(most)
    return written.of[most] or memo.keep(written, most, most == math.huge and "*" or "*" .. most)
end

-- RETURNS whether a sub-lane, of which the hash has `text`, is unbounded by what the settings say of tenant `name`.
function unbounded.says(text, name)
    local most = tenants.most_unbounded(name)
    return most > 0 and text == text_of(most)
end

-- RETURNS how many jobs may wait for a key of a tenant and hold it while none is kept back.
local function most_of(its)
    return its.is_paused and 0 or tenants.most_unbounded(its.tenant)
end

-- RETURNS whether no more than `most` jobs wait for a key and hold it, with `more` that come.
local function are_few(its_key, its, most, more)
    if most == math.huge or most == 0 then
        return most > 0
    end
    local places = {}
    for _, sublane in pairs(its.sublanes) do
        places[#places + 1] = key.sublane(its_key, sublane.type, sublane.lane)
    end
    if #places > protocol.MOST_SUBLANES then
        return false
    end
    local number = more + key_state.held(its_key, its)
    for _, place in ipairs(places) do
        number = number + redis.call("ZCARD", place)
    end
    return number <= most
end

-- Bounds the unbounded sub-lane `name` of a key.
local function bound(its_key, its, name)
    local sublane = its.sublanes[name]
    local place = key.sublane(its_key, sublane.type, sublane.lane)
    local first, enqueued = unpack(corrupt.first_of(place, 1))
    if not first then -- somebody deleted it
        key_state.end_sublane(its_key, its, name)
        return
    end
    sublane.first, sublane.enqueued, sublane.standing = first, enqueued, first
    sublane.is_unbounded, sublane.is_changed = false, true
    its.unkept[name] = redis.call("ZCARD", place)
end

-- Looks whether at most `most` jobs wait for a key and hold it, with `more` that come: then its unbounded sub-lanes
-- stay so, and its hash says `most`; else these are bounded. RETURNS whether they stay. The caller renews the key.
local function keep_to(its_key, its, most, more)
    local is_free = are_few(its_key, its, most, more)
    local is_another = is_free and its.unbounded ~= text_of(most)
    its.unbounded = is_free and text_of(most) or nil
    for name, sublane in pairs(its.sublanes) do
        if sublane.is_unbounded and not is_free then
            bound(its_key, its, name)
        elseif sublane.is_unbounded and is_another then
            sublane.is_changed = true
        end
    end
    return is_free
end

-- A key was read: bounds its unbounded sub-lanes if another maximum, or a pause, says so.
function unbounded.check(its_key, its)
    local most = most_of(its)
    if its.unbounded ~= text_of(most) then
        keep_to(its_key, its, most, 0)
    end
end

-- A repair has changed how many jobs wait for a key or hold it: whoever reads the key next counts them.
function unbounded.doubt(its_key)
    local fields = redis.call("HGETALL", key.of_key(its_key))
    for i = 1, #fields, 2 do
        if unbounded.is_one(fields[i + 1]) then
            redis.call("HSET", key.of_key(its_key), fields[i], IN_DOUBT)
        end
    end
end

-- A job is about to come into a sub-lane of a key. `sublane`: the one that begins with it; false if it was there.
function unbounded.admit(its_key, its, sublane)
    local is_free = keep_to(its_key, its, most_of(its), 1)
    if sublane then
        sublane.is_unbounded, sublane.is_changed = is_free, is_free
    end
end

-- RETURNS what job `id` says of its tenant's key, if that is its only key, its sub-lane is unbounded, and the key is
-- kept for no type (`key_turns`); else nil, also if the sub-lane does not exist yet. Without a maximum two fields of
-- the key's hash mostly tell; else the whole key is read.
local function stated_by(id, type, lane)
    local stated = id_suffix.has_only_tenant(id) and key_state.keys_of(id)[1]
    local most = stated and stated.tenant and tenants.most_unbounded(stated.tenant) or 0
    if most == 0 then
        return nil
    end
    if most == math.huge and not key_state.cache().known[stated.key] then
        local text, turn = unpack(redis.call("HMGET", key.of_key(stated.key), type .. " " .. lane, "turn"))
        if text == text_of(most) and not turn then
            return stated
        end
    end
    local its = key_state.read(stated.key)
    local sublane = its.sublanes[type .. " " .. lane]
    return sublane and sublane.is_unbounded and not its.turn and stated or nil
end

-- Adds a job, which has keys, to its unbounded sub-lane and to its lane. `heads`: those of its type, if they are known.
-- RETURNS whether it has such a sub-lane, and it stays unbounded.
function unbounded.enter(id, type, lane, enqueued, heads)
    local stated = stated_by(id, type, lane)
    local its = stated and key_state.cache().known[stated.key]
    if not stated or its and (its.sublanes[type .. " " .. lane].is_changed -- else nothing is to be written of it
        or not are_few(stated.key, its, most_of(its), 1)) then
        return false
    end
    redis.call("ZADD", key.sublane(stated.key, type, lane), enqueued, id)
    hooks.enters_lane(id, type, lane, enqueued)
    lanes.add(id, type, lane, enqueued, heads)
    return true
end

-- Keeps back as many as the call still may of the jobs of a sub-lane that was bounded, but for the one that stands.
-- RETURNS how many of its first jobs are left.
local function keep_some_back(its_key, sublane, number)
    local left = key_state.budget()
    local from = math.max(0, number - left.to_keep_back)
    left.to_keep_back = left.to_keep_back - (number - from)
    if from == number then
        return from
    end
    local place = key.sublane(its_key, sublane.type, sublane.lane)
    local jobs = redis.call("ZRANGE", place, from, number - 1, "WITHSCORES")
    local before = lanes.heads_of(sublane.type)
    local heads = before
    for i = #jobs - 1, 1, -2 do
        local id, enqueued = jobs[i], jobs[i + 1]
        if id ~= sublane.standing then
            hooks.leaves_lane(id, sublane.type, sublane.lane)
            heads = lanes.without(id, sublane.type, sublane.lane, heads)
            key_steps.block(id, sublane.type, sublane.lane, enqueued)
        end
    end
    if heads ~= before then
        lanes.write(sublane.type, heads)
    end
    return from
end

-- Goes on with the sub-lanes of a key that were bounded.
function unbounded.block(its_key, its)
    for name, number in pairs(its.unkept) do
        local left = keep_some_back(its_key, its.sublanes[name], number)
        if left > 0 then
            redis.call("HSET", key.of_key(its_key), "+" .. name, left)
            its.unkept[name] = left
            admission.continue_later(its_key)
        else
            redis.call("HDEL", key.of_key(its_key), "+" .. name)
            its.unkept[name] = nil
        end
    end
end
