-- fair_share: whose turn it is among the tenants of a lane, by the time that each has used of the fleet's slots. This is
-- start-time fair queueing (Goyal, Vin, Cheng 1996) over slots. A tenant has a tag: the slot-time that its jobs were
-- charged, µs, by its weight. Of the jobs that stand in a lane, one for each tenant, goes the one with the smallest
-- start: the tag of its tenant, or the clock when the job came, if that is more. So idleness earns nothing. The clock
-- is the greatest start of a job that was claimed in its turn.
-- With a half-life (`half_life`) use of before counts less: the start is the tag alone, so a tenant that was quiet goes
-- first until it has caught up, and there is no clock.
-- A claim charges the time that jobs of the type usually take; the end of the job corrects it by the time that it had
-- its slot: more is charged, less is credit for the tenant's next claims. So tags only grow, and key `turns` may have
-- outdated starts: these are too low, never too high, and the smallest is corrected when a claim reads it.
-- Key `tags`: tenant -> tag; member "!" has the clock. What a tenant without jobs has used counts as long as the clock
-- is behind its tag. Jobs that belong to no tenant go by age: a turn is only looked for when the oldest job of a lane
-- has a tenant. Tags, clock, credit and turns are those of an era (`tenants`).
-- Cost: about ten commands for each claim and each end; O(log tenants).
local CLOCK = "!"
local AT_ONCE = 3 -- turns that a claim reads together: mostly the second one shows which is the least

-- RETURNS the key of the tenant of job `id`, if tenants go by shares, and the job has one; else nil.
local function tenant_of(id)
    local its_keys = tenants.shares() and key_state.keys_of(id) or {}
    local stated = its_keys[#its_keys]
    return stated and tenants.is_one(stated.key) and stated.key or nil
end

-- RETURNS what the call has read or written of tags: tenant -> tag.
local function tags_of_call()
    local keys = key_state.cache()
    keys.tags = keys.tags or {}
    return keys.tags
end

-- RETURNS the tag of a tenant; of CLOCK the clock, false if there is none. The call knows what it has read or written,
-- and reads the clock together with a tag.
local function read(its_key)
    local tags = tags_of_call()
    if tags[its_key] == nil and tags[CLOCK] == nil then
        local found = redis.call("ZMSCORE", key.tags, its_key, CLOCK)
        tags[CLOCK], tags[its_key] = tonumber(found[2] or nil) or false, tonumber(found[1] or nil) or false
    elseif tags[its_key] == nil then
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

-- RETURNS the start of job `id` of the tenant `its_key`: the greater of the tenant's tag and the clock at which the job
-- came; with a half-life the tag. The clock only grows: so a tag that has reached the clock is the start, and the row
-- of the job need not be read.
local function start_of(its_key, id)
    local era, half_life_us = tenants.shares()
    local tag = tag_of(its_key)
    if half_life_us > 0 or (read(CLOCK) and tag >= read(CLOCK)) then
        return tag
    end
    key_state.keys_of(id) -- reads when it came
    local its_era, since = string.match(key_state.cache().jobs[id].since or "", "^(%d+):(%d+)$")
    return math.max(tag, its_era == era and tonumber(since) or 0)
end

-- Charges a tenant the time `us` of a slot. RETURNS its tag then. `tag`: that of before.
local function tag_after(its_key, tag, us)
    local _, half_life_us = tenants.shares()
    local added = math.floor(us / tenants.quota_of(tenants.name_of(its_key)).weight)
    if half_life_us > 0 then
        return added > 0 and half_life.after(tag, added, half_life_us) or tag
    end
    return tag + added
end

-- RETURNS the member of `turns` for a job: those of one start go by age.
local function turn_of(enqueued, id)
    return enqueued .. " " .. id
end

-- Job `id` waits from now on: notes era and clock in field `since` of the job's row, unless the field has a clock of
-- this era already. `is_fresh`: whether the job was published just now, so that its row has no such field.
function fair_share.admit(id, is_fresh)
    if not tenant_of(id) then
        return
    end
    local era, half_life_us = tenants.shares()
    local since = not is_fresh and redis.call("HGET", key.job(id), "since") or nil
    local is_of_now = since and string.find(since, era .. ":", 1, true) == 1
    if not is_of_now and half_life_us == 0 and read(CLOCK) then
        since = era .. ":" .. call.text(read(CLOCK))
        redis.call("HSET", key.job(id), "since", since)
    end
    key_state.cache().jobs[id].since = since or false
end

-- Job `id`, which stood for its tenant in `sublane`, does so no more.
function fair_share.revoke_admission(sublane, id, enqueued)
    if sublane.turn then
        redis.call("ZREM", key.turns(sublane.type, sublane.lane, sublane.turn), turn_of(enqueued, id))
        sublane.turn, sublane.is_changed = nil, true
    end
end

-- Job `id` stands for a tenant in `sublane` from now on: gives it a turn in its lane, while tenants go by shares.
function fair_share.give_turn(its_key, sublane, id, enqueued)
    local era = tenants.shares()
    if era then
        redis.call("ZADD", key.turns(sublane.type, sublane.lane, era), start_of(its_key, id), turn_of(enqueued, id))
        sublane.turn, sublane.is_changed = era, true
    end
end

-- Gives the jobs that stand for a tenant a turn each in their lanes, while tenants go by shares. Of very many sub-lanes
-- a call changes MOST_OPENED; the next tick goes on.
function fair_share.renew(its_key, its)
    if not its.tenant then
        return
    end
    local era, number = tenants.shares(), 0
    for _, sublane in pairs(its.sublanes) do
        local id = sublane.standing
        if id ~= "" and sublane.turn ~= era then
            if number == protocol.MOST_OPENED then
                admission.continue_later(its_key)
                return
            end
            number = number + 1
            local enqueued = key_state.enqueued_of(its_key, sublane, id)
            fair_share.revoke_admission(sublane, id, enqueued)
            fair_share.give_turn(its_key, sublane, id, enqueued)
        end
    end
end

-- RETURNS the member of `turns` with the least start, when its job came, and the id; nil if one that may be the least
-- is of an unknown tenant. Corrects outdated starts that it meets, as many as the call may; the next calls do the
-- others.
local function least_of(turns, lane)
    local left = key_state.budget()
    while true do
        local some = redis.call("ZRANGE", turns, 0, AT_ONCE - 1, "WITHSCORES")
        local best, best_start, best_enqueued, best_id, set_right, is_sure = nil, nil, nil, nil, {}, #some < 2 * AT_ONCE
        for i = 1, #some, 2 do
            local turn, least = some[i], tonumber(some[i + 1])
            if best and (best_start < least or best_start == least and best < turn) then
                is_sure = true
                break
            end
            local enqueued, id = string.match(turn, "^(%S+) (%S+)$")
            local its_key = id and tenant_of(id)
            if not its_key and id and redis.call("ZSCORE", lane, id) then
                return nil
            elseif not its_key then -- it is the turn of no job: the others are read again
                corrupt.remove(turns, turn)
                best, is_sure, set_right = nil, false, {}
                break
            end
            local start = math.max(least, tag_of(its_key))
            if start > least and left.to_set_right > 0 then
                left.to_set_right = left.to_set_right - 1
                set_right[turn] = start
            else
                start, is_sure = least, true -- those behind have no lower one
            end
            if not best or start < best_start or start == best_start and turn < best then
                best, best_start, best_enqueued, best_id = turn, start, enqueued, id
            end
        end
        for turn, start in pairs(set_right) do
            if turn ~= best then
                redis.call("ZADD", turns, start, turn)
            end
        end
        if is_sure then
            return best, best_enqueued, best_id
        end
    end
end

-- `job` is the oldest one of its lane. RETURNS the job of this lane whose tenant's turn it is: mostly `job` itself;
-- else another one, a table without `place`, since that job is none of the heads.
function hooks.turn(job)
    local is_of_one = id_suffix.has_only_tenant(job.id)
    if not tenants.shares() or not (is_of_one or id_suffix.may_have_tenant(job.id) and tenant_of(job.id)) then
        return job
    end
    local turns = key.turns(job.type, job.lane, (tenants.shares()))
    for _ = 1, protocol.MOST_TURNS do
        local turn, enqueued, id = least_of(turns, key.lane(job.type, job.lane))
        if not turn or id == job.id then
            return job -- if there is none, a tick is still to give turns, or somebody deleted these
        elseif redis.call("ZSCORE", key.lane(job.type, job.lane), id) then
            if is_of_one and not tenant_of(job.id) then
                return job -- replayed: its message said a mark, and rules that nobody could read
            end
            return { id = id, type = job.type, lane = job.lane, enqueued = enqueued, nth = job.nth }
        end
        redis.call("ZREM", turns, turn) -- somebody deleted the job's place
    end
    return job
end

-- Job `id` of `type` was claimed: charges its tenant, whose key is `its_key`. `is_its_turn`: whether the job was chosen
-- by its start, so that the clock follows. The clock stays if the job went before all others since its tenant was below
-- its minimum, by age alone, or since a reserve keeps back the job whose turn it was.
function fair_share.charge(its_key, id, type, is_its_turn)
    local era, half_life_us = tenants.shares()
    if not era then
        return
    end
    local usual_us = time_in(redis.call("HGET", key.durations, type))
    local credit_us = time_in(redis.call("HGET", key.credits, its_key))
    local start = start_of(its_key, id)
    local used_us = math.min(credit_us, usual_us)
    if used_us > 0 then
        redis.call("HSET", key.credits, its_key, call.text(credit_us - used_us))
    end
    local tags = tags_of_call()
    tags[its_key] = tag_after(its_key, start, usual_us - used_us)
    if half_life_us > 0 then
        redis.call("ZADD", key.tags, tags[its_key], its_key)
    else
        tags[CLOCK] = math.max(tag_of(CLOCK), is_its_turn and start or 0)
        redis.call("ZADD", key.tags, tags[its_key], its_key, tags[CLOCK], CLOCK)
    end
    redis.call("HSET", key.job(id), "charged", call.text(usual_us))
end

-- Job `id` had its slot, and has it no more: corrects what was charged.
function fair_share.correct(its_key, id)
    if not tenants.shares() then
        return
    end
    local claimed, charged = unpack(redis.call("HMGET", key.job(id), "claimed", "charged"))
    local took_us = math.max(0, call.now_us - time_in(claimed or call.now))
    local more_us = took_us - time_in(charged)
    if more_us > 0 then
        local tag = tag_after(its_key, tag_of(its_key), more_us)
        redis.call("ZADD", key.tags, tag, its_key)
        tags_of_call()[its_key] = tag
    elseif more_us < 0 then
        local credit_us = time_in(redis.call("HGET", key.credits, its_key))
        redis.call("HSET", key.credits, its_key, call.text(credit_us - more_us))
    end
end

-- RETURNS the tag up to which tags of tenants without jobs are forgotten; nil for none.
local function least_tag()
    local era, half_life_us = tenants.shares()
    if era and half_life_us > 0 then
        return half_life.least(half_life_us)
    end
    return redis.call("ZSCORE", key.tags, CLOCK) or nil
end

-- Forgets some of the tags that the clock has reached, or that are of long ago, of tenants without jobs. RETURNS
-- whether there may be more.
function fair_share.tick()
    local number, least = 0, least_tag()
    local some = least and redis.call("ZRANGEBYSCORE", key.tags, "-inf", least, "LIMIT", 0, protocol.MOST_KEYS) or {}
    for _, its_key in ipairs(some) do
        if its_key ~= CLOCK and redis.call("EXISTS", key.of_key(its_key), key.held(its_key)) == 0 then
            redis.call("ZREM", key.tags, its_key)
            tags_of_call()[its_key] = false
            redis.call("HDEL", key.credits, its_key)
            number = number + 1
        end
    end
    return number > 0 and #some == protocol.MOST_KEYS
end
