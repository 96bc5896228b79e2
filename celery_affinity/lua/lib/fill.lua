-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot.
-- After it, no pending job and free slot that fit each other exist side by side among `types`, unless it says `more`.
-- Cost: independent of pending jobs (log n) and of workers; grows with the lanes of `types`.
-- @include lib/claims.lua
-- @include lib/filters.lua
-- @include lib/lanes.lua
-- @include lib/score.lua
-- @include lib/slots.lua
local MAX_MOVES = 50 -- in one call of a script, so that none runs for more than 5 ms

local function slots_that_fit(type, capacity, view, settings)
    if settings.rarity == "free" then
        return view.free_for(type)
    end
    if not capacity[type] then
        capacity[type] = tonumber(redis.call("HGET", key.capacity, type) or 1)
    end
    return capacity[type]
end

local function best_job(heads, capacity, view, settings, by_age)
    local best
    for type, lanes_of_type in pairs(heads) do
        if view.any_free(type) then
            local fit = slots_that_fit(type, capacity, view, settings)
            for _, head in pairs(lanes_of_type) do
                if filters.admit(head) then
                    local age_us = clock.now_us - head.enqueued_us
                    head.score = by_age and 0 or score.of(head.priority, head.on_demand, age_us, fit, settings)
                    if not best or score.overtakes(head, best) then
                        best = head
                    end
                end
            end
        end
    end
    return best
end

-- RETURNS whether the next claim goes by age alone. Only a share below 100 is counted: it costs a write for each claim.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.turn) or 0), settings.priority_percentage)
end

-- `caller`: the worker whose jobs go into the reply instead of its inbox; "" for none.
-- RETURNS {more (1 or 0), payload, ...}, and the ids that went into it.
local function fill(types, caller, settings)
    local reply, inline = { 0 }, {}
    local heads = lanes.heads(types)
    local capacity, view = {}, slots.view()
    for _ = 1, MAX_MOVES do
        local job = best_job(heads, capacity, view, settings, goes_by_age(settings))
        if not job then
            return reply, inline
        end
        if settings.priority_percentage ~= 100 then
            redis.call("INCR", key.turn)
        end
        local id = job.id
        local worker, profile = view.best(job.type)
        lanes.remove(id, job.type, job.lane, heads[job.type])
        claims.grant(id, worker)
        view.taken(profile)
        if worker == caller then
            reply[#reply + 1] = claims.payload(id)
            inline[#inline + 1] = id
        else
            redis.call("LPUSH", key.inbox(worker), claims.payload(id))
        end
    end
    reply[1] = 1
    return reply, inline
end
