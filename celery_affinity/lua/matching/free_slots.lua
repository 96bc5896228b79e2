-- free_slots: counts free slots per profile (the set of types that a worker serves), not per type and worker.
-- The file is long because it contains every change of a count.

-- Positions in the list of a worker's slot fields.
local PROFILE, SLOTS, OTHER, ACCEPTING, FREE, STALLED, TYPES, KEEPS, HINTS, TERMS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
free_slots.PROFILE, free_slots.SLOTS, free_slots.OTHER = PROFILE, SLOTS, OTHER
free_slots.ACCEPTING, free_slots.STALLED = ACCEPTING, STALLED

-- Returns the slot fields of a worker's hash, followed by its fields `...`.
function free_slots.row(worker, ...)
    return redis.call("HMGET", key.worker(worker), "profile", "slots", "other", "accepting", "free", "stalled", ...)
end

-- Returns the field `terms` that matches the other fields of a worker.
function free_slots.terms_of(row)
    for position = 1, TERMS do
        row[position] = row[position] or ""
    end
    return table.concat({
        row[PROFILE], row[SLOTS], row[OTHER], row[ACCEPTING], row[STALLED], row[TYPES], row[KEEPS],
        row[HINTS],
    }, "\n")
end

local parsed_terms = memo.cache()

-- Returns the parsed field `terms`, a table shared by many invocations: all slot fields of a worker except the number
-- of free slots. Returns nil if the field is corrupt.
local function parse_terms(text)
    local profile, slots, other, accepting, stalled, types, keeps, hints_text =
        string.match(text, "^(%S+)\n(%d+)\n(-?%d+)\n([01])\n(1?)\n([^\n]*)\n([^\n]*)\n([^\n]*)$")
    local type_list, hints = workers.split(types), workers.split(hints_text)
    type_list.is_kept = true -- later invocations get this table again: `best_types` caches points by it
    return profile and memo.keep(parsed_terms, text, {
        profile, tonumber(slots), tonumber(other), accepting, false, stalled == "1",
        types = type_list, keeps = keeps ~= "" and keeps, hints = hints,
    })
end

-- Returns a worker's slot fields, its types, its retention of ended jobs, and the free slots in its hash. Both lists
-- are read-only. All but the last are in field `terms`, which rarely changes, so a release reads two fields, not eight.
function free_slots.terms(worker)
    local values = redis.call("HMGET", key.worker(worker), "terms", "free")
    local text = values[1]
    local terms = text and (parsed_terms.of[text] or parse_terms(text))
    if terms then
        return terms, terms.types, terms.keeps, values[2]
    end
    local row = free_slots.row(worker, "types", "keeps", "hints") -- another client deleted or overwrote it
    return row, workers.split(row[TYPES]), row[KEEPS], row[FREE]
end

-- Returns a worker's number of free slots, negative if it holds jobs beyond its slots. The number of other running
-- requests is negative while claims that wait for a rate limit lend their slots.
function free_slots.left(worker, row)
    return row[SLOTS] - row[OTHER] - redis.call("HLEN", key.claims(worker))
end

-- Returns true if jobs can be assigned to a worker. A worker without slots gets no jobs, even if its claims lend slots.
function free_slots.takes_jobs(row)
    return row[ACCEPTING] == "1" and not row[STALLED] and tonumber(row[SLOTS]) > 0
end

-- Returns a worker's profile, its free slots, and the free slots in its hash; nil for an unknown worker. The number is
-- derived from the claims, not added up, so no sequence of invocations can leak a slot.
--   known_free: the number in the hash, if `row` does not include it.
function free_slots.count(worker, row, known_free)
    row = row or free_slots.row(worker)
    if not row[PROFILE] then
        return nil
    end
    local free = free_slots.takes_jobs(row) and free_slots.left(worker, row) or 0
    return row[PROFILE], free > 0 and free or 0, tonumber(known_free or row[FREE])
end

-- Writes the number of free slots of a worker.
--   stored: the number in its hash.
function free_slots.write(worker, profile, free, stored)
    if free > 0 then
        redis.call("ZADD", key.free(profile), call.now, worker)
    elseif stored > 0 then
        redis.call("ZREM", key.free(profile), worker)
    end
    if free ~= stored then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, free - stored)
    end
end

-- Recounts a worker's free slots after a change of its claims or of the data in field `terms`.
function free_slots.recount(worker)
    local row = free_slots.row(worker, "types", "keeps", "hints", "terms")
    local profile, free, stored = free_slots.count(worker, row)
    if profile and free ~= stored then
        free_slots.write(worker, profile, free, stored)
    end
    local terms = profile and free_slots.terms_of(row)
    if terms and terms ~= row[TERMS] then
        redis.call("HSET", key.worker(worker), "terms", terms)
    end
end

-- Writes the hints that a worker holds, as a string.
function free_slots.say_hints(worker, hints_text)
    local terms = redis.call("HGET", key.worker(worker), "terms")
    local others = terms and string.match(terms, "^.*\n") -- nil: another client deleted or overwrote the field
    redis.call("HSET", key.worker(worker), "hints", hints_text, "terms", others and others .. hints_text or "")
    call.has_new_hints = true
end

-- Returns the number of free slots that fit `type`.
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

local own_view = {} -- functions of the view of one worker's slots

function own_view.free_for(view, type)
    return free_slots.free_for(type) + view.left - view.was
end

function own_view.any_free(view)
    return view.left > 0
end

function own_view.best(view)
    return view.worker
end

function own_view.occupy(view)
    view.left, view.is_taken = view.left - 1, true
end

function own_view.write(view)
    if view.profile and (view.is_taken or view.left ~= view.was) then
        free_slots.write(view.worker, view.profile, view.left, view.was)
    end
end

-- Returns the view of all free slots, including the slots of this worker.
function own_view.of_all(view)
    free_slots.recount(view.worker)
    return slot_choice.view()
end

-- Returns a view of the free slots of one worker; slot_choice.lua has the view of all slots. A view lasts for one
-- invocation: it reads each number once, records each assigned slot (`occupy`), and writes the changes at the end
-- (`write`). Server functions that removed claims of `worker` use this view: only these slots are new, and no other
-- free slot can fit a pending job.
--   row, known_free: as in `free_slots.count`.
-- Field `left` of the view is the number of free slots; only views of one worker have it.
function free_slots.own(worker, row, known_free)
    local profile, free, stored = free_slots.count(worker, row, known_free)
    return {
        worker = worker, profile = profile, left = free or 0, was = stored, fits_all = true,
        free_for = own_view.free_for, any_free = own_view.any_free, best = own_view.best,
        occupy = own_view.occupy, write = own_view.write, of_all = own_view.of_all,
        hints = row.hints,
    }
end
