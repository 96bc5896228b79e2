-- locality: hints. A job may have a hint, a word for what it works with, such as a model (option `locality`). A worker
-- holds the hints of the last jobs that it ended well: keys `hints` of the worker, and `holders` of the hint. When
-- slots of one worker are filled, a job that waits and has one of its hints gets a bonus (`locality_bonus`): so jobs go
-- where their data is. Of each lane the jobs with a hint are in a near lane, beside their lane, and key `near_heads`
-- has of each hint and type the heads of these, as key `heads` has those of a type.
-- A worker's row has its hints as words, sorted: in field `hints`, and in field `terms`, which a release reads anyway.
-- Cost: about four commands for a job with a hint that comes into its lane, leaves it, or ends. O(log n). A choice
-- reads the heads of the worker's hints, and compares those anew that have changed, MOST_NEAR_BYTES of them in a call.
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
    return rules_codec.hint(redis.call("HGET", key.job(id), "rules") or nil)
end

-- Writes the heads of jobs of `type` into `field`.
local function write(field, type, heads)
    if heads == "" then
        redis.call("HDEL", key.near_heads, field)
    else
        redis.call("HSET", key.near_heads, field, heads)
    end
    if call.near then
        call.near.heads[type], call.near.best[type] = nil, nil
    end
end

-- Job `id`, which has a hint, comes into its lane.
function locality.enter(id, type, lane, enqueued)
    local hint = locality.hint_of(id)
    if hint then
        local field = locality.field_of(hint, type)
        local before = redis.call("HGET", key.near_heads, field) or ""
        local after = lanes.with(id, locality.place_of(hint, type), lane, enqueued, before)
        if after ~= before then
            write(field, type, after)
        end
    end
end

-- Job `id`, which has a hint, leaves its lane. `job`: as in `hooks.leaves_lane`.
function locality.leave(id, type, lane, job)
    local hint = job and job.hint or locality.hint_of(id)
    if not hint then
        return
    end
    local field, near = locality.field_of(hint, type), call.near
    local all = job and job.near and near.heads[type] -- nil if a rule has moved a job since
    local before = all and all[job.near] or redis.call("HGET", key.near_heads, field) or ""
    local after, next_enqueued
    if all then
        after, next_enqueued = lanes.pop(job, before, job.near_place, key.near_lane(hint, type, lane))
        head_cache.popped(field, job.near_place, lane, before, after, next_enqueued, near.settings)
    else
        after = lanes.without(id, locality.place_of(hint, type), lane, before)
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
    local hint = rules_codec.hint(rules or nil)
    if not hint then
        return
    end
    local is_new = redis.call("ZADD", key.hints(worker), call.now, hint) == 1
    redis.call("HINCRBY", key.counters, is_new and "locality_misses" or "locality_hits", "1")
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
function hooks.worker_goes(worker)
    for _, hint in ipairs(redis.call("ZRANGE", key.hints(worker), 0, -1)) do
        redis.call("ZREM", key.holders(hint), worker)
    end
    redis.call("UNLINK", key.hints(worker))
end

local meanings = memo.cache()

-- RETURNS the hints that the worker of `view` holds, a list that nobody changes; nil for none.
function locality.of(view)
    local hints = not call.has_new_hints and view.hints
    if not hints then
        local text = redis.call("HGET", key.worker(view.worker), "hints") or ""
        hints = meanings.of[text] or memo.keep(meanings, text, workers.split(text))
    end
    return #hints > 0 and hints or nil
end

-- RETURNS the workers that hold the hint of job `id`, a list, who took it up last first; of very many some.
function locality.holders(id)
    local hint = locality.hint_of(id)
    return hint and redis.call("ZRANGE", key.holders(hint), "0", protocol.MOST_HOLDERS - 1, "REV") or {}
end

local known_fields = memo.cache() -- type -> those of the hints that were looked for last

-- RETURNS the fields of jobs of `type` with one of `hints`, a list that nobody changes.
local function fields_of(hints, type)
    local fields = known_fields.of[type] or memo.keep(known_fields, type, {})
    if fields.hints ~= hints then
        fields = { hints = hints }
        for nth, hint in ipairs(hints) do
            fields[nth] = locality.field_of(hint, type)
        end
        known_fields.of[type] = fields
    end
    return fields
end

-- RETURNS a table for what a claim learns of the jobs with a hint that its worker holds; nil if there is no bonus, the
-- slots of `view` are not those of one worker, or the worker holds no hint. hints: of the worker. heads: type -> the
-- near heads of each hint. best: type -> the best of these jobs, as `best_of` returns it. bytes: bytes of heads that
-- the claim may still compare anew. `job_choice.rarity` takes the table as a choice.
function hooks.near(types, view, preferred)
    local hints = preferred.bonus > 0 and view.worker and locality.of(view)
    return hints and {
        hints = hints, bonus = preferred.bonus, types = types, view = view, settings = false, capacities = false,
        heads = {}, best = {}, bytes = protocol.MOST_NEAR_BYTES,
    } or nil
end

-- RETURNS whether `job` has one of the worker's hints. Notes its hint in it.
local function is_near(near, job)
    job.hint = locality.hint_of(job.id)
    for _, hint in ipairs(near.hints) do
        if hint == job.hint then
            return true
        end
    end
    return false
end

-- RETURNS the best job of `type` with one of the worker's hints, a table: the position of its hint, its heads and its
-- place there, and its points without rarity; false for none.
local function best_of(near, type)
    local fields, all = fields_of(near.hints, type), near.heads[type]
    if not all then
        all = redis.call("HMGET", key.near_heads, unpack(fields))
        near.heads[type] = all
    end
    local nth, place, points
    nth, place, points, near.bytes = head_cache.first_of(fields, all, near.settings, near.bytes)
    return nth and { nth = nth, heads = all[nth], place = place, points = points }
end

-- RETURNS the best job of those that have one of the worker's hints, and that a free slot fits, as `best_of` does, its
-- points, and its type; nil for none.
local function best_near(near, waiting)
    local best, most, its_type
    local types = near.types
    for nth = 1, #types do
        local type = types[nth]
        if waiting.heads[type] and near.view:any_free(type) then
            local found = near.best[type]
            if found == nil then
                found = best_of(near, type)
                near.best[type] = found
            end
            local points = found and found.points
            if found and #types > 1 and (not best or points + near.settings.most_rarity >= most) then
                points = points + job_choice.rarity(near, nth)
            end
            if found and (not best or points > most or (points == most
                and head_cache.is_older(found.heads, found.place, best.heads, best.place))) then
                best, most, its_type = found, points, type
            end
        end
    end
    return best, most, its_type
end

-- RETURNS the points of `job`, without rarity if all jobs are of one type.
local function points_of(near, job)
    local points = head_cache.points(job.lane, job.enqueued, near.settings)
    for nth, type in ipairs(near.types) do
        if type == job.type and #near.types > 1 then
            return points + job_choice.rarity(near, nth)
        end
    end
    return points
end

-- RETURNS the job that goes once the bonus counts, mostly `job` itself, which goes first if the bonus is left out. If
-- `job` has one of the worker's hints, no other job can pass it. Else the best job with one of these hints goes
-- instead, if the bonus lifts its points above those of `job`, or to as many and it is the older one. Somebody may have
-- deleted that other job from its lane.
function hooks.nearer(waiting, job)
    local near = call.near
    if id_suffix.has_hint(job.id) and is_near(near, job) then
        return job
    end
    near.settings = near.settings or settings_in_force.for_a_claim()
    local best, most, type = best_near(near, waiting)
    local other = best and lanes.checked_job(type, best.heads, best.place, job.nth)
    if not other or other.id == job.id then
        return job
    end
    local lead = most + math.floor(near.bonus * MICRO) - points_of(near, job)
    if lead < 0 or (lead == 0
        and score.is_older(tonumber(job.enqueued), job.id, tonumber(other.enqueued), other.id)) then
        return job
    end
    other.place, other.hint, other.near, other.near_place = nil, near.hints[best.nth], best.nth, best.place
    if other.lane ~= job.lane or other.type ~= job.type then -- else it is none of the heads
        queue_heads.find_place(waiting, other)
    end
    return other
end
