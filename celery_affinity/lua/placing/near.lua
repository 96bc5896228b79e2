-- near: hints. A job may have a hint, a word for what it works with, such as a model (option `locality`). A worker
-- holds the hints of the last jobs that it ended well: keys `hints` of the worker, and `holders` of the hint. When
-- slots of one worker are filled, a job that waits and has one of its hints gets a bonus (`locality_bonus`): so jobs go
-- where their data is. Of each lane the jobs with a hint are in a near lane, beside their lane, and key `near_heads`
-- has of each hint the heads of these, as key `heads` has those of a type; the name of such a lane is "type:lane".
-- Field `hints` of a worker's row has its hints as words, sorted, so that a release reads one text.
-- Cost: about four commands for a job with a hint that comes into its lane, leaves it, or ends. O(log n).
local PLACE = "key:near:"

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

-- Job `id` leaves its near lane of `hint`, whose heads are `before`.
local function leave(hint, id, place, before)
    local after = lanes.without(id, near.place_of(hint), place, before)
    if after ~= before then
        near.write(hint, after)
    end
end

-- Job `id`, which has a hint, leaves its lane. `known`: as in `hooks.leaves_lane`.
function near.leave(id, type, lane, known)
    local hint = known and known.hint or near.hint_of(id)
    if hint then
        local before = known and known.heads or redis.call("HGET", key.near_heads, hint) or ""
        leave(hint, id, type .. ":" .. lane, before)
    end
end

-- RETURNS what the row of a worker with `hints`, a list, says of them.
function near.words(hints)
    table.sort(hints)
    return table.concat(hints, " ")
end

-- `worker` ended a job with `rules` well: the hint of the job becomes its latest one. A worker with MOST_HINTS
-- forgets its oldest. Counts whether the worker held the hint before.
function near.record(worker, rules)
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
        redis.call("HSET", key.worker(worker), "hints", near.words(hints))
    end
end

-- `worker` goes, and with it what it holds.
function near.forget(worker)
    for _, hint in ipairs(redis.call("ZRANGE", key.hints(worker), 0, -1)) do
        redis.call("ZREM", key.holders(hint), worker)
    end
    redis.call("UNLINK", key.hints(worker))
end

local meanings = kept.cache()

-- RETURNS the hints that `worker` holds, a list that nobody changes; nil for none.
function near.of(worker)
    local text = redis.call("HGET", key.worker(worker), "hints")
    local hints = text and (meanings.of[text] or kept.keep(meanings, text, workers.split(text)))
    return hints and #hints > 0 and hints or nil
end

-- RETURNS the workers that hold the hint of job `id`, a table: worker -> true; of very many the newest ones.
function near.holders(id)
    local hint, found = near.hint_of(id), {}
    for _, worker in ipairs(hint and redis.call("ZRANGE", key.holders(hint), -protocol.MOST_HOLDERS, -1) or {}) do
        found[worker] = true
    end
    return found
end

local function none() end

-- RETURNS the oldest job with one of the worker's hints of each near lane that its slots fit, a list of jobs. near: the
-- hint of the job, and the heads of this hint. `all`: the heads of each hint of the worker.
local function oldest_near(waiting, all)
    local found, of_place = {}, {}
    for nth, heads in ipairs(all) do
        for place, enqueued, id in heads and lanes.each(heads) or none do
            local job, enqueued_us = of_place[place], tonumber(enqueued)
            if job == nil then
                local type, lane = near.parts_of(place)
                job = type and waiting.heads[type] and waiting.view:any_free(type)
                    and { type = type, lane = lane, near = {} }
                of_place[place], found[#found + 1] = job or false, job or nil
            end
            if job and (not job.id or score.is_older(enqueued_us, id, job.enqueued_us, job.id)) then
                job.enqueued, job.enqueued_us, job.id = enqueued, enqueued_us, id
                job.near.hint, job.near.heads = waiting.hints[nth], heads
            end
        end
    end
    return found
end

-- RETURNS the points of a job, without rarity if all jobs are of one type.
local function points_of(waiting, job, settings)
    local points = best_heads.points(job.lane, job.enqueued, settings)
    return #waiting.types > 1 and points + which_job.rarity(job.type, waiting.view, settings) or points
end

-- RETURNS the job that goes first of `jobs`, and its points.
local function first_of(waiting, jobs, settings)
    local best, most
    for _, job in ipairs(jobs) do
        local points = points_of(waiting, job, settings)
        if not best or points > most or (points == most
            and score.is_older(job.enqueued_us, job.id, best.enqueued_us, best.id)) then
            best, most = job, points
        end
    end
    return best, most
end

-- RETURNS whether `job`, the oldest of its lane, is a near head, and notes in it of which hint.
local function is_near(waiting, job, all)
    local head = marks.has_hint(job.id) and job.type .. ":" .. job.lane .. " " .. job.enqueued .. " " .. job.id
    for nth, heads in ipairs(head and all or {}) do
        if heads == head
            or heads and #heads > #head and string.find(" " .. heads .. " ", " " .. head .. " ", 1, true) then
            job.near = { hint = waiting.hints[nth], heads = heads }
            return true
        end
    end
    return false
end

-- RETURNS the job that goes instead of `job`, which goes first of those without a bonus; mostly itself: then it goes
-- before all others that have the bonus as well. The other job may be in no lane, since somebody deleted that.
function near.better(waiting, job)
    local all = redis.call("HMGET", key.near_heads, unpack(waiting.hints))
    if is_near(waiting, job, all) then
        return job
    end
    local jobs = oldest_near(waiting, all)
    if #jobs == 0 then
        return job
    end
    local settings = settings_in_force.for_a_claim()
    local best, most = first_of(waiting, jobs, settings)
    local points = points_of(waiting, job, settings)
    most = most + math.floor(waiting.bonus * 1000000)
    if points > most or (points == most
        and score.is_older(tonumber(job.enqueued), job.id, best.enqueued_us, best.id)) then
        return job
    end
    candidates.find_place(waiting, best)
    return best
end
