-- free_slots: counts free slots per profile (the set of types that a worker serves), not per type and worker.
-- A reason for the length: all that changes a count, in one place.

-- Positions in a worker's row.
local PROFILE, SLOTS, OTHER, ACCEPTING, FREE, STALLED, TYPES, KEEPS, HINTS, TERMS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
free_slots.PROFILE, free_slots.SLOTS, free_slots.OTHER = PROFILE, SLOTS, OTHER
free_slots.ACCEPTING, free_slots.STALLED = ACCEPTING, STALLED

-- RETURNS a worker's row: what its hash says of its slots, then its fields `...`.
function free_slots.row(worker, ...)
    return redis.call("HMGET", key.worker(worker), "profile", "slots", "other", "accepting", "free", "stalled", ...)
end

-- RETURNS the field `terms` that goes with the other fields of a worker's row.
function free_slots.terms_of(row)
    for position = 1, TERMS do
        row[position] = row[position] or ""
    end
    return table.concat({
        row[PROFILE], row[SLOTS], row[OTHER], row[ACCEPTING], row[STALLED], row[TYPES], row[KEEPS],
        row[HINTS],
    }, "\n")
end

local meanings = memo.cache()

-- RETURNS what field `terms` says, a table for many calls: a worker's row but for what is free; nil if it is spoiled.
local function meaning_of(text)
    local profile, slots, other, accepting, stalled, types, keeps, words =
        string.match(text, "^(%S+)\n(%d+)\n(-?%d+)\n([01])\n(1?)\n([^\n]*)\n([^\n]*)\n([^\n]*)$")
    local list, hints = workers.split(types), workers.split(words)
    list.is_kept = true -- this very table returns in later calls: `best_types` keeps points by it
    return profile and memo.keep(meanings, text, {
        profile, tonumber(slots), tonumber(other), accepting, false, stalled == "1",
        types = list, keeps = keeps ~= "" and keeps, hints = hints,
    })
end

-- RETURNS a worker's row, the types that it serves, both lists that nobody changes, what it keeps of ended jobs, and
-- the number of free slots that its hash has. All but the last is in field `terms`, which changes rarely: so a release
-- reads two fields instead of eight.
function free_slots.terms(worker)
    local found = redis.call("HMGET", key.worker(worker), "terms", "free")
    local text = found[1]
    local its = text and (meanings.of[text] or meaning_of(text))
    if its then
        return its, its.types, its.keeps, found[2]
    end
    local row = free_slots.row(worker, "types", "keeps", "hints") -- somebody deleted or overwrote the field, or the row
    return row, workers.split(row[TYPES]), row[KEEPS], row[FREE]
end

-- RETURNS how many slots of a worker are free; below 0 if it holds jobs beyond its slots. The other running requests
-- are less than 0 when claims that wait for a rate limit lend their slots.
function free_slots.left(worker, row)
    return row[SLOTS] - row[OTHER] - redis.call("HLEN", key.claims(worker))
end

-- RETURNS whether jobs are placed on a worker. A worker without slots takes none, whatever its claims lend.
function free_slots.takes_jobs(row)
    return row[ACCEPTING] == "1" and not row[STALLED] and tonumber(row[SLOTS]) > 0
end

-- RETURNS the profile of a worker, the number of its free slots, and the number that its hash has. The number is
-- derived, not added up, so that no sequence of calls can leak a slot. nil for a worker that is not known. `has`: that
-- number, if the row has it not.
function free_slots.count(worker, row, has)
    row = row or free_slots.row(worker)
    if not row[PROFILE] then
        return nil
    end
    local free = free_slots.takes_jobs(row) and free_slots.left(worker, row) or 0
    return row[PROFILE], free > 0 and free or 0, tonumber(has or row[FREE])
end

-- Writes that a worker has `free` free slots now; `was`: the number that its hash has.
function free_slots.write(worker, profile, free, was)
    if free > 0 then
        redis.call("ZADD", key.free(profile), call.now, worker)
    elseif was > 0 then
        redis.call("ZREM", key.free(profile), worker)
    end
    if free ~= was then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, free - was)
    end
end

-- Counts a worker's free slots again, after its claims, or anything that field `terms` says, have changed.
function free_slots.recount(worker)
    local row = free_slots.row(worker, "types", "keeps", "hints", "terms")
    local profile, free, was = free_slots.count(worker, row)
    if profile and free ~= was then
        free_slots.write(worker, profile, free, was)
    end
    local terms = profile and free_slots.terms_of(row)
    if terms and terms ~= row[TERMS] then
        redis.call("HSET", key.worker(worker), "terms", terms)
    end
end

-- Writes which hints a worker holds now, as words.
function free_slots.say_hints(worker, words)
    local terms = redis.call("HGET", key.worker(worker), "terms")
    local others = terms and string.match(terms, "^.*\n") -- nil: somebody deleted or overwrote the field
    redis.call("HSET", key.worker(worker), "hints", words, "terms", others and others .. words or "")
    call.has_new_hints = true
end

-- RETURNS how many free slots fit `type`.
function free_slots.free_for(type)
    local profiles = redis.call("ZRANGE", key.serving(type), "0", "-1")
    local sum = 0
    for first = 1, #profiles, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #profiles)
        for _, free in ipairs(redis.call("HMGET", key.free_slots, unpack(profiles, first, last))) do
            sum = sum + (tonumber(free) or 0)
        end
    end
    return sum
end

local own = {} -- the functions of a view of the slots of one worker

function own.free_for(view, type)
    return free_slots.free_for(type) + view.left - view.was
end

function own.any_free(view)
    return view.left > 0
end

function own.best(view)
    return view.worker
end

function own.occupy(view)
    view.left, view.is_taken = view.left - 1, true
end

function own.write(view)
    if view.profile and (view.is_taken or view.left ~= view.was) then
        free_slots.write(view.worker, view.profile, view.left, view.was)
    end
end

-- RETURNS the view of all free slots, those of this worker among them.
function own.of_all(view)
    free_slots.recount(view.worker)
    return slot_choice.view()
end

-- RETURNS a view of the free slots of `worker` alone; `slot_choice.lua` has the view of all. A view lasts for one call
-- of an arrow: it reads each number once, is told which slot gets a job (`occupy`), and writes the changes at its end
-- (`write`). `left`: the number of free slots, where that is known. This view is for the arrow that removed claims of
-- `worker`: only these slots are new; no other free slot can fit a pending job. `row`, `has`: as `free_slots.count`
-- takes them.
function free_slots.own(worker, row, has)
    local profile, left, was = free_slots.count(worker, row, has)
    return {
        worker = worker, profile = profile, left = left or 0, was = was, fits_all = true, free_for = own.free_for,
        any_free = own.any_free, best = own.best, occupy = own.occupy, write = own.write, of_all = own.of_all,
        hints = row.hints,
    }
end
