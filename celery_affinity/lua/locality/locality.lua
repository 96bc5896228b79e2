-- locality: hints. A job may have a hint, a word for what it works with, such as a model (option `locality`). A worker
-- holds the hints of the last jobs that it ended well: keys `hints` of the worker, and `holders` of the hint. When
-- slots of one worker are filled, a job that waits and has one of its hints gets a bonus (`locality_bonus`): so jobs go
-- where their data is. Of each lane the jobs with a hint are in a near lane, beside their lane, and key `near_heads`
-- has of each hint the heads of these, as key `heads` has those of a type; the name of such a lane is "type:lane".
-- A worker's row has its hints as words, sorted: in field `hints`, and in field `terms`, which a release reads anyway.
-- Cost: about four commands for a job with a hint that comes into its lane, leaves it, or ends. O(log n).
local PLACE = "key:near:"
local BLANK = 32 -- the byte
local LONG = 2000 -- bytes of the heads of a hint, as 40 lanes have: of longer ones a worker of FEW types reads its own
local FEW = 3

-- RETURNS the type whose lanes are the near lanes of `hint`.
function locality.place_of(hint)
    return PLACE .. hint
end

-- RETURNS type and lane of a near lane; nil if `place` is not the name of one.
function locality.parts_of(place)
    return string.match(place, "^(.+):(%l+%.%d+)$")
end

-- RETURNS the hint of job `id`, as its row says; nil if somebody deleted the row.
function locality.hint_of(id)
    return rule_texts.hint(redis.call("HGET", key.job(id), "rules") or nil)
end

-- Writes the heads of a hint.
function locality.write(hint, heads)
    if heads == "" then
        redis.call("HDEL", key.near_heads, hint)
    else
        redis.call("HSET", key.near_heads, hint, heads)
    end
end

-- Job `id`, which has a hint, comes into its lane.
function locality.enter(id, type, lane, enqueued)
    local hint = locality.hint_of(id)
    if hint then
        local before = redis.call("HGET", key.near_heads, hint) or ""
        local after = lanes.with(id, locality.place_of(hint), type .. ":" .. lane, enqueued, before)
        if after ~= before then
            locality.write(hint, after)
        end
    end
end

-- Job `id`, which has a hint, leaves its lane. `known`: as in `hooks.leaves_lane`.
function locality.leave(id, type, lane, known)
    local hint = known and known.hint or locality.hint_of(id)
    if hint then
        local of_hint, place = locality.place_of(hint), type .. ":" .. lane
        local before = known and known.heads or redis.call("HGET", key.near_heads, hint) or ""
        local after
        if known and known.is_alone then
            redis.call("ZREM", key.lane(of_hint, place), id)
            after = lanes.with_new_head(of_hint, place, before, 1, #before)
        else
            after = lanes.without(id, of_hint, place, before)
        end
        if after ~= before then
            locality.write(hint, after)
        end
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

local NOWHERE, known_places, known_heads = {}, kept.cache(), kept.cache()

-- RETURNS the near lane with the name `place`, a table; type and lane are nil if there is none of this name.
local function read_place(place)
    local type, lane = locality.parts_of(place)
    return kept.keep(known_places, place, { type = type, lane = lane })
end

-- RETURNS the head of the near lane with the name `place`, a table that nobody changes, and in it `more` heads. place:
-- the near lane; enqueued, enqueued_us, id: of its oldest job.
local function head_of(place, enqueued, id, more)
    local us = tonumber(enqueued) or math.huge -- somebody overwrote it
    place = known_places.of[place] or read_place(place)
    return { place = place, enqueued = enqueued, enqueued_us = us, id = id, more = more }
end

-- RETURNS what the heads of a hint are, as `head_of` has it: the last one, and in each the one before; false for none.
-- is_alone: whether there is no other.
local function read(heads)
    local head = false
    for name, enqueued, id in lanes.each(heads) do
        head = head_of(name, enqueued, id, head)
    end
    if head and not head.more then
        head.is_alone = true
    end
    return kept.keep(known_heads, heads, head)
end

-- RETURNS a near lane in which no job was found, as `oldest_near` returns it: none is found there (it is always too
-- young) if the slots that are filled do not fit the lane's type.
local function empty(waiting, place)
    local type = place.type
    local fits = type and waiting.heads[type] and waiting.view:any_free(type)
    return { place = place, us = fits and math.huge or -math.huge, head = false, nth = 0 }
end

-- RETURNS what `read` does of long heads, without those of types that no slot fits. That is kept as long as this call:
-- the next job that comes or goes makes all of it another text.
local function read_some(waiting, heads)
    local known = waiting.long_heads or {}
    waiting.long_heads = known
    local head = known[heads] or false
    if head then
        return head
    end
    for _, type in ipairs(waiting.types) do
        local name = type .. ":"
        local at = string.find(heads, name, 1, true)
        while at do
            local lane, enqueued, id = string.match(heads, "^(%l+%.%d+) (%S+) (%S+)", at + #name)
            if lane and (at == 1 or string.byte(heads, at - 1) == BLANK) then
                head = head_of(name .. lane, enqueued, id, head)
            end
            at = string.find(heads, name, at + #name, true)
        end
    end
    known[heads] = head
    return head
end

-- RETURNS the oldest job with one of the worker's hints of each near lane that its slots fit: near lane -> a table.
-- head: the job, false for none; nth: the position of its hint; us: when it came. `all`: the heads of each hint.
-- RETURNS nil, the position of its hint and its head if one of the jobs is `first`: that goes first in any case.
local function oldest_near(waiting, all, first)
    local found, last, first_id = {}, NOWHERE, first.id
    for nth = 1, #all do
        local heads = all[nth]
        local head = heads and known_heads.of[heads]
        if head == nil then
            if #heads > LONG and #waiting.types <= FEW then
                head = read_some(waiting, heads)
            else
                head = read(heads)
            end
        end
        while head do
            local place, us, id = head.place, head.enqueued_us, head.id
            if id == first_id then
                return nil, nth, head
            elseif place ~= last.place then
                last = found[place] or empty(waiting, place)
                found[place] = last
            end
            if us < last.us or (us == last.us and last.head and id < last.head.id) then
                last.head, last.nth, last.us = head, nth, us
            end
            head = head.more
        end
    end
    return found
end

-- RETURNS the points of a job of a type, without rarity if all jobs are of one.
local function points_of(waiting, type, lane, enqueued, settings)
    local points = best_heads.points(lane, enqueued, settings)
    return #waiting.types > 1 and points + which_job.rarity(type, waiting.view, settings) or points
end

-- RETURNS which of the near lanes in `found` has the job that goes first, and by how many points it goes before `job`:
-- in one lane that is a matter of age alone. nil if none has a job.
local function first_of(waiting, found, job, settings)
    local best, most, points
    local type, lane, enqueued_us = job.type, job.lane, tonumber(job.enqueued)
    for place, each in pairs(found) do
        local lead = false
        if each.head and place.lane == lane and place.type == type then
            local on_demand = lanes.is_on_demand(lane)
            lead = score.patience(on_demand, call.now_us - each.us, settings)
                - score.patience(on_demand, call.now_us - enqueued_us, settings)
        elseif each.head then
            points = points or points_of(waiting, type, lane, enqueued_us, settings)
            lead = points_of(waiting, place.type, place.lane, each.us, settings) - points
        end
        if lead and (not best or lead > most
            or (lead == most and score.is_older(each.us, each.head.id, best.us, best.head.id))) then
            best, most = each, lead
        end
    end
    return best, most
end

-- RETURNS the job that goes instead of `job`, which goes first of those without a bonus; mostly itself: then it goes
-- before all others that have the bonus as well. The other job may be in no lane, since somebody deleted that.
function locality.better(waiting, job)
    local all = redis.call("HMGET", key.near_heads, unpack(waiting.hints))
    local found, its_nth, its_head = oldest_near(waiting, all, job)
    if not found then
        job.near = { hint = waiting.hints[its_nth], heads = all[its_nth], is_alone = its_head.is_alone }
        return job
    elseif not next(found) then
        return job
    end
    local settings = settings_in_force.for_a_claim()
    local best, lead = first_of(waiting, found, job, settings)
    lead = best and lead + math.floor(waiting.bonus * 1000000)
    if not best or lead < 0
        or (lead == 0 and score.is_older(tonumber(job.enqueued), job.id, best.us, best.head.id)) then
        return job
    end
    local head, place = best.head, best.place
    local other = {
        type = place.type, lane = place.lane, enqueued = head.enqueued, id = head.id, nth = job.nth,
        near = { hint = waiting.hints[best.nth], heads = all[best.nth], is_alone = head.is_alone },
    }
    if other.lane ~= job.lane or other.type ~= job.type then -- else it is none of the heads
        candidates.find_place(waiting, other)
    end
    return other
end
