-- locality: hints. A job may have a hint, a word for what it works with, such as a model (option `locality`). A worker
-- holds the hints of the last jobs that it ended well: keys `hints` of the worker, and `holders` of the hint. When
-- slots of one worker are filled, a job that waits and has one of its hints gets a bonus (`locality_bonus`): so jobs go
-- where their data is. Of each lane the jobs with a hint are in a near lane, beside their lane, and key `near_heads`
-- has of each hint and type the heads of these, as key `heads` has those of a type.
-- A worker's row has its hints as words, sorted: in field `hints`, and in field `terms`, which a release reads anyway.
-- Cost: about four commands for a job with a hint that comes into its lane, leaves it, or ends. O(log n).
local PLACE = "key:near:"
local MICRO = 1000000

-- RETURNS the type whose lanes are the near lanes of jobs of `type` with `hint`.
function locality.place_of(hint, type)
    return PLACE .. hint .. ":" .. type
end

-- RETURNS the field of key `near_heads` that has their heads.
function locality.field_of(hint, type)
    return hint .. " " .. type
end

-- RETURNS hint and type of such a field; nil if it is none.
function locality.parts_of(field)
    return string.match(field, "^(%S+) (%S+)$")
end

-- RETURNS the hint of job `id`, as its row says; nil if somebody deleted the row.
function locality.hint_of(id)
    return rule_texts.hint(redis.call("HGET", key.job(id), "rules") or nil)
end

-- RETURNS the heads in `field` of key `near_heads`; "" for none.
local function heads_of(field)
    local known = call.near and call.near.heads[field]
    if known == nil or not call.near then
        known = redis.call("HGET", key.near_heads, field)
    end
    return known or ""
end

-- Writes the heads of jobs of `type` into `field`.
local function write(field, type, heads)
    if heads == "" then
        redis.call("HDEL", key.near_heads, field)
    else
        redis.call("HSET", key.near_heads, field, heads)
    end
    local near = call.near
    if near and near.heads[field] ~= nil then
        near.heads[field], near.best[type] = heads ~= "" and heads, nil
    end
end

-- Job `id`, which has a hint, comes into its lane.
function locality.enter(id, type, lane, enqueued)
    local hint = locality.hint_of(id)
    if hint then
        local field = locality.field_of(hint, type)
        local before = heads_of(field)
        local after = lanes.with(id, locality.place_of(hint, type), lane, enqueued, before)
        if after ~= before then
            write(field, type, after)
        end
    end
end

-- Job `id`, which has a hint, leaves its lane. `known`: as in `hooks.leaves_lane`.
function locality.leave(id, type, lane, known)
    local hint = known and known.hint or locality.hint_of(id)
    if not hint then
        return
    end
    local field, place = locality.field_of(hint, type), locality.place_of(hint, type)
    local before = heads_of(field)
    local after, next_enqueued
    if known and known.heads == before then
        local job = { type = place, lane = lane, enqueued = known.enqueued, id = id, place = known.place }
        after, next_enqueued = lanes.pop(job, before)
        job.type = field
        best_heads.popped(job, before, after, next_enqueued, settings_in_force.for_a_claim())
    else
        after = lanes.without(id, place, lane, before)
    end
    if after ~= before then
        write(field, type, after)
    end
end

-- RETURNS what the row of a worker with `hints`, a list, says of them.
function locality.words(hints)
    table.sort(hints)
    return table.concat(hints, " ")
end

-- `worker` ended a job with `rules` well: the hint of the job becomes its latest one. A worker with MOST_HINTS
-- forgets its oldest. Counts whether the worker held the hint before.
function locality.record(worker, rules)
    local hint = rule_texts.hint(rules or nil)
    if not hint then
        return
    end
    local is_new = redis.call("ZADD", key.hints(worker), call.now, hint) == 1
    redis.call("HINCRBY", key.counters, is_new and "locality_misses" or "locality_hits", 1)
    if is_new then
        redis.call("ZADD", key.holders(hint), call.now, worker)
        local hints = redis.call("ZRANGE", key.hints(worker), 0, -1)
        if #hints > protocol.MOST_HINTS then
            local oldest = table.remove(hints, 1)
            redis.call("ZREM", key.hints(worker), oldest)
            redis.call("ZREM", key.holders(oldest), worker)
        end
        free_slots.say_hints(worker, locality.words(hints))
    end
end

-- `worker` goes, and with it what it holds.
function locality.forget(worker)
    for _, hint in ipairs(redis.call("ZRANGE", key.hints(worker), 0, -1)) do
        redis.call("ZREM", key.holders(hint), worker)
    end
    redis.call("UNLINK", key.hints(worker))
end

local meanings = kept.cache()

-- RETURNS the hints that the worker of `view` holds, a list that nobody changes; nil for none.
function locality.of(view)
    local hints = not call.has_new_hints and view.hints
    if not hints then
        local text = redis.call("HGET", key.worker(view.worker), "hints") or ""
        hints = meanings.of[text] or kept.keep(meanings, text, workers.split(text))
    end
    return #hints > 0 and hints or nil
end

-- RETURNS the workers that hold the hint of job `id`, a list, who took it up last first; of very many some.
function locality.holders(id)
    local hint = locality.hint_of(id)
    return hint and redis.call("ZRANGE", key.holders(hint), "0", protocol.MOST_HOLDERS - 1, "REV") or {}
end

-- Reads the near heads of the hints of a worker, for the jobs in `waiting`. RETURNS what this call knows of them, a
-- table as `which_job.among` returns it, and in it: heads: field -> its heads, false for none; best: type -> the best
-- near job of the type, false for none, nil if it is to be found.
local function read(waiting)
    local fields, heads = {}, {}
    for _, type in ipairs(waiting.types) do
        for _, hint in ipairs(waiting.hints) do
            fields[#fields + 1] = locality.field_of(hint, type)
        end
    end
    for nth, its_heads in ipairs(lanes.fields(key.near_heads, fields)) do
        heads[fields[nth]] = its_heads
    end
    return {
        types = waiting.types, view = waiting.view, settings = settings_in_force.for_a_claim(), capacities = false,
        heads = heads, best = {},
    }
end

-- RETURNS the best job of `type` with one of `hints`, a table: its hint, the heads that it is of, its place there, and
-- its points without rarity; false for none.
local function best_of(near, hints, type)
    local best = false
    for _, hint in ipairs(hints) do
        local field = locality.field_of(hint, type)
        local heads = near.heads[field]
        if heads then
            local place, points = best_heads.first(field, heads, near.settings)
            if not best or points > best.points
                or (points == best.points and best_heads.is_older(heads, place, best.heads, best.place)) then
                best = { hint = hint, heads = heads, place = place, points = points }
            end
        end
    end
    return best
end

-- RETURNS the best job of those that have one of the worker's hints, and that a free slot fits, as `best_of` does, its
-- points, and the position of its type; nil for none.
local function best_near(waiting, near)
    local best, most, its_nth
    local types, view = near.types, waiting.view
    for nth = 1, #types do
        local type = types[nth]
        local found = near.best[type]
        if found == nil then
            found = best_of(near, waiting.hints, type)
            near.best[type] = found
        end
        if found and waiting.heads[type] and view:any_free(type) then
            local points = found.points
            if #types > 1 and (not best or points + near.settings.most_rarity >= most) then
                points = points + which_job.rarity(near, nth)
            end
            if not best or points > most or (points == most
                and best_heads.is_older(found.heads, found.place, best.heads, best.place)) then
                best, most, its_nth = found, points, nth
            end
        end
    end
    return best, most, its_nth
end

-- RETURNS the points of `job`, without rarity if all jobs are of one type.
local function points_of(near, job)
    local points = best_heads.points(job.lane, job.enqueued, near.settings)
    for nth, type in ipairs(near.types) do
        if type == job.type and #near.types > 1 then
            return points + which_job.rarity(near, nth)
        end
    end
    return points
end

-- RETURNS the job that goes instead of `job`, which goes first of those without a bonus; mostly itself: then it goes
-- before all others that have the bonus as well. The other job may be in no lane, since somebody deleted that.
function locality.better(waiting, job)
    local near = waiting.near
    if not near then
        near = read(waiting)
        waiting.near, call.near = near, near
    end
    local best, most, nth = best_near(waiting, near)
    local other = best and lanes.checked_job(near.types[nth], best.heads, best.place, job.nth)
    if not other then
        return job
    end
    local known = { hint = best.hint, heads = best.heads, place = best.place, enqueued = other.enqueued }
    if other.id == job.id then
        job.near = known
        return job
    end
    local lead = most + math.floor(waiting.bonus * MICRO) - points_of(near, job)
    if lead < 0 or (lead == 0
        and score.is_older(tonumber(job.enqueued), job.id, tonumber(other.enqueued), other.id)) then
        return job
    end
    other.near, other.place = known, nil
    if other.lane ~= job.lane or other.type ~= job.type then -- else it is none of the heads
        candidates.find_place(waiting, other)
    end
    return other
end
