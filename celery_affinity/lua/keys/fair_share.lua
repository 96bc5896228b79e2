-- fair_share: decides which tenant's job in a lane is claimed next, by the slot-time that each tenant has used. This is
-- start-time fair queueing (SFQ; Goyal, Vin, Cheng 1996) over slots. A tenant's tag is the slot-time in µs charged to
-- its jobs, divided by its weight. Each tenant has one admitted job in a lane; the job with the smallest start tag is
-- claimed. The start tag is the larger of the tenant's tag and the clock when the job arrived, so idleness earns
-- nothing. The clock is the largest start tag of a job that was claimed by its start tag.
-- With a half-life (`half_life`), old use weighs less. The start tag is then the tenant's tag, so a quiet tenant is
-- preferred until it has caught up, and there is no clock.
-- A claim charges the usual slot-time of the job's type. The job's end corrects it by the actual slot-time: a longer
-- run is charged, a shorter one becomes credit for the tenant's next claims. So tags only grow. Start tags in key
-- `turns` can be outdated, but only too low; a claim corrects the smallest one when it reads it.
-- Key `tags`: tenant -> tag; member "!" has the clock. The tag of a tenant without jobs is kept until the clock has
-- reached it. Jobs without a tenant are ordered by age: start tags are only compared when the oldest job of a lane has
-- a tenant. Tags, clock, credit and start tags belong to one generation (`tenants`).
--
-- Cost: about ten commands per claim and per end; O(log tenants).
local CLOCK = "!"
local READ_TOGETHER = 3 -- start tags read in one command: the second one usually proves which is the smallest

-- Returns the tenant key of job `id`, or nil if the job has none or fair shares are off.
local function tenant_of(id)
    local job_keys = tenants.shares() and key_state.keys_of(id) or {}
    local stated = job_keys[#job_keys]
    return stated and tenants.is_tenant_key(stated.key) and stated.key or nil
end

-- Returns the tags that this invocation has read or written: tenant -> tag.
local function cached_tags()
    local keys = key_state.cache()
    keys.tags = keys.tags or {}
    return keys.tags
end

-- Returns a tenant's tag, or the clock for CLOCK; false if it does not exist. Caches tags, and reads the clock together
-- with the first tag.
local function read_tag(job_key)
    local tags = cached_tags()
    if tags[job_key] == nil and tags[CLOCK] == nil then
        local scores = redis.call("ZMSCORE", key.tags, job_key, CLOCK)
        tags[CLOCK], tags[job_key] = tonumber(scores[2] or nil) or false, tonumber(scores[1] or nil) or false
    elseif tags[job_key] == nil then
        tags[job_key] = tonumber(redis.call("ZSCORE", key.tags, job_key) or nil) or false
    end
    return tags[job_key]
end

local function tag_of(job_key)
    return read_tag(job_key) or 0
end

-- Returns the time (µs) in a field, or 0.
local function time_of(text)
    return tonumber(string.match(text or "", "^%d+$") or 0)
end

-- Returns the start tag of the tenant's job `id`: the larger of the tag and the clock at the job's arrival; with a
-- half-life, the tag. The clock only grows. If the tag has reached the present clock, the tag is therefore the start
-- tag, and the job hash is not read.
local function start_of(job_key, id)
    local generation, half_life_us = tenants.shares()
    local tag = tag_of(job_key)
    if half_life_us > 0 or (read_tag(CLOCK) and tag >= read_tag(CLOCK)) then
        return tag
    end
    key_state.keys_of(id) -- reads the clock at its arrival
    local since_generation, since = string.match(key_state.cache().jobs[id].since or "", "^(%d+):(%d+)$")
    return math.max(tag, since_generation == generation and tonumber(since) or 0)
end

-- Returns the tag of a tenant after a charge of `us` slot-time.
--   tag: the tag before.
local function tag_after(job_key, tag, us)
    local _, half_life_us = tenants.shares()
    local added = math.floor(us / tenants.quota_of(tenants.name_of(job_key)).weight)
    if half_life_us > 0 then
        return added > 0 and half_life.add(tag, added, half_life_us) or tag
    end
    return tag + added
end

-- Returns the member of `turns` for a job: equal start tags are ordered by age.
local function member_of(enqueued, id)
    return enqueued .. " " .. id
end

-- Records generation and clock in field `since` of the newly waiting job `id`. A clock of the present generation is
-- kept.
--   is_fresh: true if the job was just published, so its hash cannot have the field.
function fair_share.admit(id, is_fresh)
    if not tenant_of(id) then
        return
    end
    local generation, half_life_us = tenants.shares()
    local since = not is_fresh and redis.call("HGET", key.job(id), "since") or nil
    local is_current = since and string.find(since, generation .. ":", 1, true) == 1
    if not is_current and half_life_us == 0 and read_tag(CLOCK) then
        since = generation .. ":" .. call.text(read_tag(CLOCK))
        redis.call("HSET", key.job(id), "since", since)
    end
    key_state.cache().jobs[id].since = since or false
end

-- Removes the start tag of job `id`, whose admission in `sublane` was revoked.
function fair_share.revoke_admission(sublane, id, enqueued)
    if sublane.turn then
        redis.call("ZREM", key.turns(sublane.type, sublane.lane, sublane.turn), member_of(enqueued, id))
        sublane.turn, sublane.is_changed = nil, true
    end
end

-- Adds a start tag for job `id`, now admitted in `sublane`, to its lane, if fair shares are on.
function fair_share.give_turn(job_key, sublane, id, enqueued)
    local generation = tenants.shares()
    if generation then
        redis.call("ZADD", key.turns(sublane.type, sublane.lane, generation),
            start_of(job_key, id), member_of(enqueued, id))
        sublane.turn, sublane.is_changed = generation, true
    end
end

-- Adds start tags for a tenant's admitted jobs, if fair shares are on. One invocation changes at most MAX_OPENED
-- sub-lanes; the next tick continues.
function fair_share.renew(job_key, state)
    if not state.tenant then
        return
    end
    local generation, number = tenants.shares(), 0
    for _, sublane in pairs(state.sublanes) do
        local id = sublane.standing
        if id ~= "" and sublane.turn ~= generation then
            if number == protocol.MAX_OPENED then
                admission.continue_later(job_key)
                return
            end
            number = number + 1
            local enqueued = key_state.enqueued_of(job_key, sublane, id)
            fair_share.revoke_admission(sublane, id, enqueued)
            fair_share.give_turn(job_key, sublane, id, enqueued)
        end
    end
end

-- Returns the member of `turns` with the smallest start tag, its job's enqueue time and its job id. Returns nil if the
-- tenant of a candidate is unknown. Corrects the outdated start tags that it reads, within the budget of the
-- invocation; later invocations correct the others.
local function smallest_of(turns, lane)
    local budget = key_state.budget()
    while true do
        local entries = redis.call("ZRANGE", turns, 0, READ_TOGETHER - 1, "WITHSCORES")
        local best_member, best_start, best_enqueued, best_id, corrected, is_sure =
            nil, nil, nil, nil, {}, #entries < 2 * READ_TOGETHER
        for i = 1, #entries, 2 do
            local member, stored_start = entries[i], tonumber(entries[i + 1])
            if best_member and (best_start < stored_start or best_start == stored_start and best_member < member) then
                is_sure = true
                break
            end
            local enqueued, id = string.match(member, "^(%S+) (%S+)$")
            local job_key = id and tenant_of(id)
            if not job_key and id and redis.call("ZSCORE", lane, id) then
                return nil
            elseif not job_key then -- no job has this member: the others are read again
                corrupt.remove(turns, member)
                best_member, is_sure, corrected = nil, false, {}
                break
            end
            local start = math.max(stored_start, tag_of(job_key))
            if start > stored_start and budget.to_set_right > 0 then
                budget.to_set_right = budget.to_set_right - 1
                corrected[member] = start
            else
                start, is_sure = stored_start, true -- the members behind it are not lower
            end
            if not best_member or start < best_start or start == best_start and member < best_member then
                best_member, best_start, best_enqueued, best_id = member, start, enqueued, id
            end
        end
        for member, start in pairs(corrected) do
            if member ~= best_member then
                redis.call("ZADD", turns, start, member)
            end
        end
        if is_sure then
            return best_member, best_enqueued, best_id
        end
    end
end

-- Returns the job to claim from the lane of its oldest job `job`, by start tag. It is usually `job`; another job is
-- returned as a table without `place`, since it is not a head.
function hooks.turn(job)
    local has_only_tenant = id_suffix.has_only_tenant(job.id)
    if not tenants.shares() or not (has_only_tenant or id_suffix.may_have_tenant(job.id) and tenant_of(job.id)) then
        return job
    end
    local turns = key.turns(job.type, job.lane, (tenants.shares()))
    for _ = 1, protocol.MAX_TURNS do
        local member, enqueued, id = smallest_of(turns, key.lane(job.type, job.lane))
        if not member or id == job.id then
            return job -- no member: a tick must still add start tags, or another client deleted them
        elseif redis.call("ZSCORE", key.lane(job.type, job.lane), id) then
            if has_only_tenant and not tenant_of(job.id) then
                return job -- replayed: its message had an id suffix and unreadable rules
            end
            return { id = id, type = job.type, lane = job.lane, enqueued = enqueued }
        end
        redis.call("ZREM", turns, member) -- another client removed the job from its lane
    end
    return job
end

-- Charges the tenant `job_key` for the claimed job `id`.
--   is_its_turn: true if the job was chosen by its start tag, which then advances the clock. It is false if the job was
--     chosen by its tenant's minimum or by age only. It is also false if a reserve blocks the job with the smallest
--     start tag.
function fair_share.charge(job_key, id, type, is_its_turn)
    local generation, half_life_us = tenants.shares()
    if not generation then
        return
    end
    local usual_us = time_of(redis.call("HGET", key.durations, type))
    local credit_us = time_of(redis.call("HGET", key.credits, job_key))
    local start = start_of(job_key, id)
    local used_us = math.min(credit_us, usual_us)
    if used_us > 0 then
        redis.call("HSET", key.credits, job_key, call.text(credit_us - used_us))
    end
    local tags = cached_tags()
    tags[job_key] = tag_after(job_key, start, usual_us - used_us)
    if half_life_us > 0 then
        redis.call("ZADD", key.tags, tags[job_key], job_key)
    else
        tags[CLOCK] = math.max(tag_of(CLOCK), is_its_turn and start or 0)
        redis.call("ZADD", key.tags, tags[job_key], job_key, tags[CLOCK], CLOCK)
    end
    redis.call("HSET", key.job(id), "charged", call.text(usual_us))
end

-- Corrects the charge of job `id` when it loses its slot.
function fair_share.correct(job_key, id)
    if not tenants.shares() then
        return
    end
    local claimed, charged = unpack(redis.call("HMGET", key.job(id), "claimed", "charged"))
    local took_us = math.max(0, call.now_us - time_of(claimed or call.now))
    local more_us = took_us - time_of(charged)
    if more_us > 0 then
        local tag = tag_after(job_key, tag_of(job_key), more_us)
        redis.call("ZADD", key.tags, tag, job_key)
        cached_tags()[job_key] = tag
    elseif more_us < 0 then
        local credit_us = time_of(redis.call("HGET", key.credits, job_key))
        redis.call("HSET", key.credits, job_key, call.text(credit_us - more_us))
    end
end

-- Returns the tag up to which tags of tenants without jobs are deleted, or nil.
local function deletion_limit()
    local generation, half_life_us = tenants.shares()
    if generation and half_life_us > 0 then
        return half_life.min_tag(half_life_us)
    end
    return redis.call("ZSCORE", key.tags, CLOCK) or nil
end

-- Deletes some tags that the clock has reached, or that are very old, of tenants without jobs. Returns true if there
-- can be more.
function fair_share.tick()
    local number, max = 0, deletion_limit()
    local some = max and redis.call("ZRANGEBYSCORE", key.tags, "-inf", max, "LIMIT", 0, protocol.MAX_KEYS) or {}
    for _, job_key in ipairs(some) do
        if job_key ~= CLOCK and redis.call("EXISTS", key.key_state(job_key), key.held(job_key)) == 0 then
            redis.call("ZREM", key.tags, job_key)
            cached_tags()[job_key] = false
            redis.call("HDEL", key.credits, job_key)
            number = number + 1
        end
    end
    return number > 0 and #some == protocol.MAX_KEYS
end

-- half_life: computes a tenant's tag when the weight of used slot-time halves per half-life (`fair_share`). The tag is
-- log2(sum of u * 2 ^ (t / half-life)) over all slot-time that the tenant used. u is the slot-time in µs divided by the
-- tenant's weight, and t the time of use since the epoch. All terms decay equally, so the order of tags is stable, and
-- a tag is written only when the tenant uses more.
-- The functions use only sums and products, so each server computes the same last bit as the reference model.
local LOG2_OF_E = 1.4426950408889634
local LN_2 = 0.6931471805599453
local ROOT_OF_HALF = 0.7071067811865476
local FORGOTTEN_AFTER = 10 -- half-lives

-- Returns the base-2 logarithm of a positive number. For its mantissa m, ln m is 2 atanh((m - 1) / (m + 1)).
local function log2(number)
    local m, exponent = math.frexp(number)
    if m < ROOT_OF_HALF then
        m, exponent = m * 2, exponent - 1
    end
    local ratio = (m - 1) / (m + 1)
    local square, sum = ratio * ratio, 0
    for n = 21, 1, -2 do
        sum = sum * square + 1 / n
    end
    return exponent + 2 * ratio * sum * LOG2_OF_E
end

-- Returns 2 to the power of a number that is not positive. A series computes e to the power of the fraction.
local function exp2(number)
    local whole = math.floor(number)
    local x, sum = (number - whole) * LN_2, 1
    for n = 20, 1, -1 do
        sum = 1 + sum * x / n
    end
    return whole < -1000 and 0 or math.ldexp(sum, whole)
end

-- Returns the tag after a use of `us` (positive, already divided by the weight) that ends now.
--   tag: the tag before, 0 if there is none.
function half_life.add(tag, us, half_life_us)
    local added = log2(us) + call.now_us / half_life_us
    if tag == 0 then -- 0 means no tag: with a half-life of many years, it would matter as a tag
        return added
    end
    local greater = math.max(tag, added)
    return greater + log2(1 + exp2(math.min(tag, added) - greater))
end

-- Returns the tag of a tenant that used one half-life of slot-time ten half-lives ago. Lower tags are deleted.
function half_life.min_tag(half_life_us)
    return log2(half_life_us) + call.now_us / half_life_us - FORGOTTEN_AFTER
end
