-- near: hints. A job may have a hint, a word for what it works with, such as a model (option `locality`). A worker holds
-- the hints of the last jobs that it ended well: keys `hints` of the worker, and `holders` of the hint. When slots of one
-- worker are filled, a job that waits and has one of its hints gets a bonus (`locality_bonus`): so jobs go where their
-- data is. Of each lane the jobs with a hint are in a near lane, beside their lane, and key `near_heads` has of each hint
-- the heads of these, as key `heads` has those of a type; the name of such a lane is "type:lane".
-- Cost: some four commands for a job with a hint that comes into its lane, leaves it, or ends. O(log n).
local PLACE = "key:near:"
local LOOKS = 3 -- near heads that are no jobs of their lanes, since somebody deleted these, of which one call meets more

-- RETURNS the type whose lanes are the near lanes of `hint`.
function near.place_of(hint)
    return PLACE .. hint
end

-- RETURNS type and lane of a near lane; nil if `place` is not the name of one.
function near.parts_of(place)
    return string.match(place, "^(.+):(%l+%.%d+)$")
end

-- RETURNS the hint of job `id`, as its row says; nil if somebody deleted the row.
function near.hint_of(id)
    return rule_texts.hint(redis.call("HGET", key.job(id), "rules") or nil)
end

-- Writes the heads of a hint.
function near.write(hint, heads)
    if heads == "" then
        redis.call("HDEL", key.near_heads, hint)
    else
        redis.call("HSET", key.near_heads, hint, heads)
    end
end

-- Job `id`, which has a hint, comes into its lane.
function near.enter(id, type, lane, enqueued)
    local hint = near.hint_of(id)
    if hint then
        local before = redis.call("HGET", key.near_heads, hint) or ""
        local after = lanes.with(id, near.place_of(hint), type .. ":" .. lane, enqueued, before)
        if after ~= before then
            near.write(hint, after)
        end
    end
end

-- Job `id` leaves its near lane of `hint`.
local function leave(hint, id, place)
    local before = redis.call("HGET", key.near_heads, hint) or ""
    local after = lanes.without(id, near.place_of(hint), place, before)
    if after ~= before then
        near.write(hint, after)
    end
end

-- Job `id`, which has a hint, leaves its lane.
function near.leave(id, type, lane)
    local hint = near.hint_of(id)
    if hint then
        leave(hint, id, type .. ":" .. lane)
    end
end

-- `worker` ended a job with `rules` well: it holds the hint of this job now, as the last one, and the oldest one of many
-- no more. Counts whether it held the hint before.
function near.record(worker, rules)
    local hint = rule_texts.hint(rules or nil)
    if not hint then
        return
    end
    local is_new = redis.call("ZADD", key.hints(worker), call.now, hint) == 1
    redis.call("ZADD", key.holders(hint), call.now, worker)
    redis.call("HINCRBY", key.counters, is_new and "locality_misses" or "locality_hits", 1)
    if is_new then
        redis.call("HSET", key.worker(worker), "hints", 1)
        if redis.call("ZCARD", key.hints(worker)) > protocol.MOST_HINTS then
            redis.call("ZREM", key.holders(redis.call("ZPOPMIN", key.hints(worker))[1]), worker)
        end
    end
end

-- `worker` goes, and with it what it holds.
function near.forget(worker)
    for _, hint in ipairs(redis.call("ZRANGE", key.hints(worker), 0, -1)) do
        redis.call("ZREM", key.holders(hint), worker)
    end
    redis.call("UNLINK", key.hints(worker))
end

-- RETURNS the hints that `worker` holds; nil for none.
function near.of(worker)
    local hints = redis.call("ZRANGE", key.hints(worker), 0, -1)
    return #hints > 0 and hints or nil
end

-- RETURNS the workers that hold the hint of job `id`, a table: worker -> true; of very many those who used it last.
function near.holders(id)
    local hint, found = near.hint_of(id), {}
    for _, worker in ipairs(hint and redis.call("ZREVRANGE", key.holders(hint), 0, protocol.MOST_HOLDERS - 1) or {}) do
        found[worker] = true
    end
    return found
end

-- RETURNS the job with the most points, a bonus among them, of the near heads of the worker's hints; then its points
-- without rarity, and its hint. nil for none that its slot fits.
local function first_near(waiting, settings)
    local bonus, best, most, its_hint = math.floor(waiting.bonus * 1000000), nil, nil, nil
    for nth, heads in ipairs(redis.call("HMGET", key.near_heads, unpack(waiting.hints))) do
        for place, enqueued, id in lanes.each(heads or "") do
            local type, lane = near.parts_of(place)
            if type and waiting.heads[type] and waiting.view:any_free(type) then
                local points = best_heads.points(lane, enqueued, settings) + bonus
                if #waiting.types > 1 then
                    points = points + which_job.rarity(type, waiting.view, settings)
                end
                if not best or points > most or (points == most
                    and score.is_older(tonumber(enqueued), id, tonumber(best.enqueued), best.id)) then
                    best, most = { id = id, type = type, lane = lane, enqueued = enqueued }, points
                    its_hint = waiting.hints[nth]
                end
            end
        end
    end
    return best, most, its_hint
end

-- RETURNS the job that goes instead of `job`, which goes first of those without a bonus; mostly itself.
function near.better(waiting, job)
    local settings = settings_in_force.for_a_claim()
    for _ = 1, LOOKS do
        local best, most, hint = first_near(waiting, settings)
        if not best or best.id == job.id then
            return job
        end
        local points = best_heads.points(job.lane, job.enqueued, settings)
        if #waiting.types > 1 then
            points = points + which_job.rarity(job.type, waiting.view, settings)
        end
        if points > most or (points == most
            and score.is_older(tonumber(job.enqueued), job.id, tonumber(best.enqueued), best.id)) then
            return job
        elseif candidates.find_place(waiting, best) or redis.call("ZSCORE", key.lane(best.type, best.lane), best.id) then
            return best
        end
        leave(hint, best.id, best.type .. ":" .. best.lane)
    end
    return job
end
