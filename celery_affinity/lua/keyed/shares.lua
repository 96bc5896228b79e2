-- shares: whose turn it is among the tenants of a lane, by the time that each has used of the fleet's slots. This is
-- start-time fair queueing (Goyal, Vin, Cheng 1996) over slots. A tenant has a tag: the slot-time that its jobs were
-- charged, µs, by its weight. Of the jobs that stand in a lane, one for each tenant, goes the one with the smallest
-- start: the tag of its tenant, or the clock when the job came, if that is more. So idleness earns nothing. The clock
-- is the greatest start of a job that was claimed in its turn.
-- A claim charges the time that jobs of the type usually take; the end of the job settles it by the time that it had
-- its slot: more is charged, less is credit for the tenant's next claims. So tags only grow, and key `turns` may have
-- starts of before: none is too high, and the smallest is set right when it is looked at.
-- Key `tags`: tenant -> tag; member "!" has the clock. What a tenant without jobs has used counts as long as the clock
-- is behind its tag. Jobs that belong to no tenant, or whose app has no shares, go by age: a turn is only looked for
-- when the oldest job of a lane has a share.
-- Cost: some ten commands for each claim and each end; O(log tenants).
local CLOCK = "!"

-- RETURNS what job `id` states of its tenant, if that has a share; else nil.
local function stated_of(id)
    local its_keys = key_rows.keys_of(id)
    local stated = its_keys[#its_keys]
    return stated and stated.states == protocol.BY_SHARE and stated or nil
end

-- RETURNS whether the tenant of job `id` has a share: then the time from claim to end is that of a slot, and the job
-- waits in no worker.
function shares.has_one(id)
    return stated_of(id) ~= nil
end

-- RETURNS the tag of a tenant; of CLOCK the clock, false if there is none. The call knows what it has read or written.
local function read(its_key)
    local tags = key_rows.of_call().tags
    if tags[its_key] == nil then
        tags[its_key] = tonumber(redis.call("ZSCORE", key.tags, its_key) or nil) or false
    end
    return tags[its_key]
end

local function tag_of(its_key)
    return read(its_key) or 0
end

-- RETURNS the time in a field, µs; 0 if it has none.
local function time_in(text)
    return tonumber(string.match(text or "", "^%d+$") or 0)
end

-- RETURNS the clock when job `id` came.
local function since_of(id)
    return time_in(key_rows.of_call().since[id])
end

-- RETURNS the member of `turns` for a job: those of one start go by age.
local function turn_of(enqueued, id)
    return enqueued .. " " .. id
end

-- Job `id` waits from now on: notes the clock in its row, unless it came before. `is_fresh`: whether it cannot have.
function shares.come(id, is_fresh)
    if not stated_of(id) then
        return
    end
    local keys = key_rows.of_call()
    keys.since[id] = not is_fresh and redis.call("HGET", key.job(id), "since") or read(CLOCK) and call.text(read(CLOCK))
    if keys.since[id] then
        redis.call("HSET", key.job(id), "since", keys.since[id])
    end
end

-- Job `id` comes into its lane.
function shares.stand(id, type, lane, enqueued)
    local stated = stated_of(id)
    if stated then
        local start = math.max(tag_of(stated.key), since_of(id))
        redis.call("ZADD", key.turns(type, lane), start, turn_of(enqueued, id))
    end
end

-- Job `id` leaves its lane, or is not in it.
function shares.stand_no_more(id, type, lane, enqueued)
    if stated_of(id) then
        redis.call("ZREM", key.turns(type, lane), turn_of(enqueued, id))
    end
end

-- RETURNS the job of the lane of `job`, its oldest, that goes instead of it: `job` itself, or one without a place among
-- the heads of its type. Of very many starts of before, the next calls set right what this one does not get to.
function shares.turn(job)
    if not marks.may_have_tenant(job.id) or not stated_of(job.id) then
        return job
    end
    local turns, keys = key.turns(job.type, job.lane), key_rows.of_call()
    for _ = 1, protocol.MOST_TURNS do
        local turn, start = unpack(redis.call("ZRANGE", turns, 0, 0, "WITHSCORES"))
        local enqueued, id = string.match(turn or "", "^(%S+) (%S+)$")
        local stated = id and stated_of(id)
        local tag = stated and tag_of(stated.key)
        if not stated then
            return job -- somebody deleted the turns
        elseif tag > tonumber(start) and keys.left_to_set_right > 0 then
            redis.call("ZADD", turns, tag, turn)
            keys.left_to_set_right = keys.left_to_set_right - 1
        elseif id == job.id then
            return job
        elseif redis.call("ZSCORE", key.lane(job.type, job.lane), id) then
            return { id = id, type = job.type, lane = job.lane, enqueued = enqueued, nth = job.nth }
        else
            redis.call("ZREM", turns, turn) -- somebody deleted the job's place
        end
    end
    return job
end

-- Job `id` of `type` was claimed: charges its tenant, whose key is `its_key`. `is_its_turn`: not since the tenant had
-- less than its minimum, which says nothing of the starts of others.
function shares.charge(its_key, id, type, is_its_turn)
    local usual_us = time_in(redis.call("HGET", key.durations, type))
    local credit_us = time_in(redis.call("HGET", key.credits, its_key))
    local clock = tag_of(CLOCK)
    local start = math.max(tag_of(its_key), since_of(id))
    local used_us = math.min(credit_us, usual_us)
    if used_us > 0 then
        redis.call("HSET", key.credits, its_key, call.text(credit_us - used_us))
    end
    local tags = key_rows.of_call().tags
    tags[its_key] = start + math.floor((usual_us - used_us) / tenants.weight_of(its_key))
    tags[CLOCK] = is_its_turn and math.max(start, clock) or clock
    redis.call("ZADD", key.tags, tags[its_key], its_key, tags[CLOCK], CLOCK)
    redis.call("HSET", key.job(id), "charged", call.text(usual_us))
end

-- Job `id` had its slot, and has it no more: settles what was charged.
function shares.settle(its_key, id)
    local claimed, charged = unpack(redis.call("HMGET", key.job(id), "claimed", "charged"))
    local took_us = math.max(0, call.now_us - time_in(claimed or call.now))
    local more_us = took_us - time_in(charged)
    if more_us > 0 then
        local tag = tag_of(its_key) + math.floor(more_us / tenants.weight_of(its_key))
        redis.call("ZADD", key.tags, tag, its_key)
        key_rows.of_call().tags[its_key] = tag
    elseif more_us < 0 then
        local credit_us = time_in(redis.call("HGET", key.credits, its_key))
        redis.call("HSET", key.credits, its_key, call.text(credit_us - more_us))
    end
end

-- Forgets some of the tags that the clock has reached, of tenants without jobs. RETURNS whether there may be more.
function shares.tick()
    local number = 0
    local clock = redis.call("ZSCORE", key.tags, CLOCK)
    local some = clock and redis.call("ZRANGEBYSCORE", key.tags, "-inf", clock, "LIMIT", 0, protocol.MOST_KEYS) or {}
    for _, its_key in ipairs(some) do
        if its_key ~= CLOCK and redis.call("EXISTS", key.of_key(its_key), key.held(its_key)) == 0 then
            redis.call("ZREM", key.tags, its_key)
            key_rows.of_call().tags[its_key] = false
            redis.call("HDEL", key.credits, its_key)
            number = number + 1
        end
    end
    return number > 0 and #some == protocol.MOST_KEYS
end
