-- publish: a message becomes a job: pending, or scheduled if its time is still to come; placed at once on a free slot.
-- @include placing/lanes.lua
-- @include placing/free_slots.lua
-- @include jobs/find_by.lua
-- @include jobs/ends.lua

-- Writes what is known of `job`, and its message. The first write is one that a full server may refuse.
local function write_job(job, lane, enqueued, state)
    redis.call("HSET", key.job(job.id), job_fields.row(job, lane, enqueued, state))
    redis.call("SET", key.message(job.id), job.message)
end

-- `job`: its fields by name. `enqueued_us`: when it was published. `is_only`: whether it is the only one of the call.
-- RETURNS its state, and served, as publish does; whether the caller is to `place` what waits of its type: if others
-- wait, no free slot fits, or somebody is about to go on with them. And, of the only one, if no other job of its type
-- waits, what `place` needs to put it in its lane, or on a slot without one.
local function put(job, enqueued_us, is_only)
    local id, type, delay_us, expires_us = job.id, job.type, tonumber(job.delay_us), job.expires_us
    local is_heard_of = redis.call("EXISTS", key.job(id), key.revoked(job.task_id)) > 0 -- of most nothing is
    if is_heard_of and redis.call("EXISTS", key.job(id)) == 1 then
        -- A script that ran into what somebody had spoiled wrote one half: a job that waits, and nowhere.
        local row = redis.call("HMGET", key.job(id), "state", "type", "lane")
        local place = row[1] == "pending" and row[2] and row[3] and key.lane(row[2], row[3])
            or row[1] == "scheduled" and key.scheduled
        if not place or redis.call("ZSCORE", place, id) then
            return protocol.IS_KNOWN, 1, false
        end
    end

    local due, lane = clock.text(enqueued_us + math.max(0, delay_us)), lanes.name(job.mode, job.priority)
    write_job(job, lane, due, delay_us > 0 and "scheduled" or "pending")
    local is_expired = expires_us ~= "" and tonumber(expires_us) <= 0
    local is_revoked = is_heard_of and traces.is_revoked(job.task_id)
    local expires = expires_us ~= "" and clock.text(clock.now_us + tonumber(expires_us)) or ""
    traces.add(id, job.task_id, job.stamps, expires)
    if is_expired or is_revoked then
        ends.note(id, is_revoked and "revoked" or "expired")
        return protocol.HAS_ENDED, 1, false
    end

    if delay_us > 0 then
        redis.call("HSET", key.job(id), "published", clock.now)
        redis.call("ZADD", key.scheduled, due, id)
        if delay_us < protocol.TICK_US and redis.call("ZRANGE", key.scheduled, 0, 0)[1] == id then
-- @deferred fleet/workers.lua
            workers.have_one_tick() -- it knows of no job that is due so soon
        end
        return protocol.IS_SCHEDULED, 1, false
    end
    local heads, alone = redis.call("HGET", key.heads, type), nil
    if heads or not is_only then
        lanes.add(id, type, lane, due, heads or "")
    else
        alone = { id = id, type = type, lane = lane, enqueued = due }
    end
    local is_served = redis.call("HGET", key.capacity, type) or redis.call("HGET", key.capacity, WITHDRAWN .. type)
    if not is_served then
        redis.call("HINCRBY", key.counters, "unserved", 1)
        return protocol.IS_PENDING, 0, false, alone
    end
    return protocol.IS_PENDING, 1, not heads, alone
end

-- Places pending jobs of `their_types`, as `fill` does; `messages`: theirs, by their ids; `alone`: as `put` returns it.
-- RETURNS more, as `fill` does.
-- Most publishes meet no free slot, and the functions that place a job cost more to define than all that a publish
-- calls: they are defined once a free slot is seen.
local function place(their_types, messages, alone)
    local fitting = 0
    for _, type in ipairs(their_types) do
        fitting = fitting + slots.free_for(type)
    end
    if fitting > 0 then
-- @deferred generated/settings.lua
-- @deferred placing/which_slot.lua
-- @deferred placing/fill.lua
        local function one_alone() -- it never sees its lane: otherwise as `candidates` has those that wait
            return {
                types = {},
                best = function()
                    return alone
                end,
                take = function()
                    alone = nil
                end,
                write = function() end,
            }
        end

        local view = slots.view()
        local waiting = alone and one_alone() or candidates(their_types, view, read_settings())
        return fill_from(waiting, "", view, messages)[1]
    end
    if alone then
        lanes.add(alone.id, alone.type, alone.lane, alone.enqueued, "")
    end
    return ""
end
