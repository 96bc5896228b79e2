-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot.
-- After it, no pending job and free slot that fit each other exist side by side among `types`, unless it says `more`.
-- Cost: independent of pending jobs (log n) and of workers; grows with the lanes of `types`, once in a call.
-- @include lib/claims.lua
-- @include lib/filters.lua
-- @include lib/heads.lua
-- @include lib/score.lua
-- @include lib/settings.lua
-- @include lib/slots.lua
local MAX_MOVES = 10 -- in one call of a script, so that none runs for more than 5 ms: a move takes some 0.1 ms

-- RETURNS whether the next claim goes by age alone. Only a share below 100 is counted: it costs a write for each claim.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.turn) or 0), settings.priority_percentage)
end

-- The waiting jobs of some types, of each type the best at hand. Within a script time stands still, and rarity is the
-- same for all lanes of a type: which of its lanes is best changes only when one of its jobs is taken.
local function candidates(types, view, settings)
    local all = {}
    local heads = lanes.heads(types)
    local is_read = false -- whether the settings are
    local best, oldest, touched = {}, {}, {}
    local standing, on_demand = {}, {} -- lane -> what its name says
    local capacity -- type -> slots of the live workers that serve it

    local function points_of(lane, enqueued_us)
        if not standing[lane] then
            local demanded, priority = lanes.kind(lane)
            standing[lane], on_demand[lane] = score.standing(priority, demanded, settings), demanded
        end
        return standing[lane] + score.patience(on_demand[lane], clock.now_us - enqueued_us, settings)
    end

    local function rarity_of(type)
        if settings.rarity == "free" then
            return score.rarity(view.free_for(type), settings)
        end
        capacity = capacity or lanes.capacity(heads)
        return score.rarity(tonumber(capacity[type] or 1), settings)
    end

    -- RETURNS the head of `type` that goes first, its score without rarity; false if a rule keeps all of them back.
    local function first_of(type, by_age)
        local known = by_age and oldest or best
        if known[type] ~= nil then
            return known[type]
        end
        -- A versatile worker has hundreds of lanes to look through: no table for each, and few calls.
        local best_points, best_us, best_enqueued, best_id, best_lane
        for lane, enqueued, id in lanes.each(heads[type]) do
            if filters.none or filters.admit(type, lane, id) then
                local enqueued_us = tonumber(enqueued)
                local points = by_age and 0 or points_of(lane, enqueued_us)
                if not best_id or points > best_points
                    or (points == best_points and score.is_older(enqueued_us, id, best_us, best_id)) then
                    best_points, best_us, best_enqueued, best_id, best_lane = points, enqueued_us, enqueued, id, lane
                end
            end
        end
        known[type] = best_id and { points = best_points, enqueued_us = best_us, enqueued = best_enqueued, id = best_id,
            lane = best_lane, type = type } or false
        return known[type]
    end

    -- RETURNS the head that goes first of all those that a free slot fits, or nil.
    function all.best()
        local one = next(heads)
        if not one then
            return nil
        end
        local first, most
        local of_types = next(heads, one) ~= nil
        local of_heads = of_types or not string.find(heads[one], "^%S+ %S+ %S+$")
        if of_heads and not is_read then -- one alone needs no score
            is_read = true
            read_for_a_claim(settings)
        end
        local by_age = not of_heads or goes_by_age(settings)
        for type in pairs(heads) do
            local head = view.any_free(type) and first_of(type, by_age)
            if head then
                local points = head.points
                if of_types and not by_age then
                    points = points + rarity_of(type)
                end
                local enqueued_us, id = head.enqueued_us, head.id
                if not first or points > most
                    or (points == most and score.is_older(enqueued_us, id, first.enqueued_us, first.id)) then
                    first, most = head, points
                end
            end
        end
        return first
    end

    function all.take(job)
        local type = job.type
        heads[type] = lanes.take(type, job.lane, job.id, heads[type])
        best[type], oldest[type], touched[type] = nil, nil, true
        if heads[type] == "" then
            heads[type] = nil
        end
    end

    function all.write()
        for type in pairs(touched) do
            lanes.write(type, heads[type] or "")
        end
    end

    return all
end

-- `caller`: the worker whose jobs go into the reply instead of its inbox; "" for none. `view`: of the slots to fill.
-- `fresh`: job id -> its message, of a job that was just written.
-- RETURNS {more (1 or 0), payload, ...}, and {id, fence, type} of each that went into it.
local function fill(types, caller, settings, view, fresh)
    local reply, inline = { 0 }, {}
    local waiting = candidates(types, view, settings)
    for moves = 1, MAX_MOVES do
        local job = view.left ~= 0 and waiting.best()
        if not job then
            break
        end
        local id, worker = job.id, view.best(job.type)
        view.take(worker)
        waiting.take(job)
        local fence = claims.grant(id, worker)
        if settings.priority_percentage ~= 100 then
            redis.call("INCR", key.turn)
        end
        local payload = claims.payload(id, fence, job.type, job.enqueued, fresh and fresh[id])
        if worker == caller then
            reply[#reply + 1] = payload
            inline[#inline + 1] = { id = id, fence = fence, type = job.type }
        else
            redis.call("LPUSH", key.inbox(worker), payload)
        end
        reply[1] = moves == MAX_MOVES and 1 or 0
    end
    waiting.write()
    view.settle()
    return reply, inline
end
