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
    type_list.is_kept = true -- later invocations get this table again: `job_choice` caches rarity by it
    return profile and memo.keep(parsed_terms, text, {
        profile, tonumber(slots), tonumber(other), accepting, false, stalled == "1",
        takes_jobs = accepting == "1" and stalled == "" and tonumber(slots) > 0,
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
function free_slots.remaining(worker, row)
    return row[SLOTS] - row[OTHER] - redis.call("HLEN", key.claims(worker))
end

-- Returns true if jobs can be assigned to a worker. A worker without slots gets no jobs, even if its claims lend slots.
function free_slots.takes_jobs(row)
    if row.takes_jobs ~= nil then -- parsed from field `terms`
        return row.takes_jobs
    end
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
    local free = free_slots.takes_jobs(row) and free_slots.remaining(worker, row) or 0
    return row[PROFILE], free > 0 and free or 0, tonumber(known_free or row[FREE])
end

-- Writes the number of free slots of a worker.
--   stored: the number in its hash.
function free_slots.write(worker, profile, free, stored)
    local change = free - stored -- first: if `stored` is corrupt, this fails before any write, and a repair fixes it
    if free > 0 then
        redis.call("ZADD", key.free(profile), call.now, worker)
    elseif stored > 0 then
        redis.call("ZREM", key.free(profile), worker)
    end
    if change ~= 0 then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, change)
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
function free_slots.write_hints(worker, hints_text)
    local terms = redis.call("HGET", key.worker(worker), "terms")
    local others = terms and string.match(terms, "^.*\n") -- nil: another client deleted or overwrote the field
    redis.call("HSET", key.worker(worker), "hints", hints_text, "terms", others and others .. hints_text or "")
    call.has_new_hints = true
end

-- Returns the number of free slots that fit `type`.
function free_slots.free_for(type)
    local sum = 0
    for _, free in ipairs(hash.read(key.free_slots, redis.call("ZRANGE", key.serving(type), "0", "-1"))) do
        sum = sum + (tonumber(free) or 0)
    end
    return sum
end

local own_view = { fits_all = true } -- the view of one worker's slots; no invocation has two of them

function own_view.free_for(view, type)
    return free_slots.free_for(type) + view.left - view.was
end

function own_view.any_free(view) return view.left > 0 end

function own_view.best(view) return view.worker end

function own_view.occupy(view) view.left, view.is_taken = view.left - 1, true end

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
    local view, profile, free, stored = own_view, free_slots.count(worker, row, known_free)
    view.worker, view.profile, view.left, view.was = worker, profile or false, free or 0, stored
    view.hints, view.is_taken = row.hints or false, false
    return view
end

-- open_profiles: finds the profiles with a free slot, for a view of all slots (`slot_choice`). Reads as few profiles as
-- possible: some profiles of a type, then, if these have no free slot, all profiles with a free slot (once).
local FIRST, LAST = 20, "19" -- number of a type's profiles in the first read, and the index of the last one
local NEXT = 100 -- number in the second read; each further read has MAX_UNPACKED
local FEW_LOOKUPS = 10 -- the free slots of more profiles are read with one command
local FEW_OPEN = 50 -- up to this number of profiles with a free slot, only these are looked up for a type

-- Returns the state of profiles in one invocation, a table.
--   free: profile -> free slots on the server, for the profiles that were read.
--   occupied: profile -> slots that were assigned in this invocation and are not written yet.
--   all: list of all profiles with a free slot, nil until read; profiles missing in `free` then have no free slot.
--   serving: type -> a list "profile, size, ..." of its profiles that had a free slot when read, smallest first. Fields
--     of the list:
--     read: number of the type's profiles that were examined, nil if there are no others.
--     largest: size of the last examined profile.
--     first: list position of the first profile that can still have a free slot, nil for the beginning.
function open_profiles.new()
    return { free = {}, occupied = {}, serving = {} }
end

-- Updates the free slots after the occupied slots were written.
function open_profiles.written(open)
    for profile, slots in pairs(open.occupied) do
        open.free[profile] = open.free[profile] and open.free[profile] - slots
    end
    open.occupied = {}
end

local function free_in(open, profile)
    local free = open.free[profile]
    if not free then
        free = not open.all and tonumber(redis.call("HGET", key.free_slots, profile)) or 0
        open.free[profile] = free
    end
    return free - (open.occupied[profile] or 0)
end

-- Reads the free slots of a page's profiles with one command, for `free_in`.
local function read_free(open, page)
    local unknown = {}
    for i = 1, #page, 2 do
        unknown[#unknown + 1] = not open.free[page[i]] and page[i] or nil
    end
    if #unknown > FEW_LOOKUPS then
        for nth, slots_free in ipairs(redis.call("HMGET", key.free_slots, unpack(unknown))) do
            open.free[unknown[nth]] = tonumber(slots_free) or 0
        end
    end
end

-- Reads all profiles with a free slot, sorted by name.
local function read_all(open)
    local fields, all = redis.call("HGETALL", key.free_slots), {}
    for i = 1, #fields, 2 do
        local profile, slots_free = fields[i], tonumber(fields[i + 1]) or 0
        if slots_free > 0 then
            all[#all + 1] = profile
            open.free[profile] = open.free[profile] or slots_free
        end
    end
    table.sort(all)
    open.all = all
end

-- Returns the profiles that serve `type`, and their sizes, if few profiles have a free slot.
local function read_open(open, type)
    local all, matches, list = open.all, {}, {}
    for nth, size in ipairs(#all > 0 and redis.call("ZMSCORE", key.serving(type), unpack(all)) or {}) do
        matches[#matches + 1] = size and { tonumber(size), nth } or nil
    end
    table.sort(matches, function(one, other)
        return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
    end)
    for _, match in ipairs(matches) do
        list[#list + 1], list[#list + 2] = all[match[2]], match[1]
    end
    return list
end

-- Reads profiles of `type` from rank `before` on. Returns the profiles with a free slot, and their sizes.
local function read_page(open, type, before)
    local first, last, max = "0", LAST, FIRST -- the usual case; formatting a number costs 2,000 instructions
    if before > 0 then
        max = before == FIRST and NEXT or protocol.MAX_UNPACKED
        first, last = before, before + max - 1
    end
    local page = redis.call("ZRANGE", key.serving(type), first, last, "WITHSCORES")
    local number, length = 0, #page
    if length > 2 * FEW_LOOKUPS and not open.all then
        read_free(open, page)
    end
    if length == 2 * max then
        page.read, page.largest = before + max, tonumber(page[length])
    end
    for i = 1, length, 2 do -- the page becomes the list of profiles with a free slot
        local profile, size = page[i], page[i + 1]
        page[i], page[i + 1] = nil, nil
        if free_in(open, profile) > 0 then
            page[number + 1], page[number + 2] = profile, tonumber(size)
            number = number + 2
        end
    end
    return page
end

-- Reads more profiles of `type` into `list`. If the first ones have no free slot, few profiles may have any.
local function read_more(open, type, list)
    if #list == 0 and not open.all then
        read_all(open)
    end
    local page = #list == 0 and #open.all <= FEW_OPEN and read_open(open, type) or read_page(open, type, list.read)
    for _, value in ipairs(page) do
        list[#list + 1] = value
    end
    list.read, list.largest = page.read, page.largest
end

-- Returns the first profile of `type` with a free slot at position `nth` or later, most specialised first: position,
-- profile and size. Returns nil if there is none, or if its size is above `size`.
function open_profiles.next(open, type, nth, size)
    local list = open.serving[type]
    while true do
        local profile = list[nth]
        if profile and free_in(open, profile) > 0 then
            return nth, profile, list[nth + 1]
        elseif profile then
            nth = nth + 2
        elseif not list.read or size and list.largest > size then
            return nil
        else
            read_more(open, type, list)
        end
    end
end

-- Returns the same as `next`, for all profiles of `type`. No slot becomes free in an invocation, so a profile without a
-- free slot is examined once.
function open_profiles.first(open, type)
    local list = open.serving[type]
    if not list then
        list = open.all and #open.all <= FEW_OPEN and read_open(open, type) or read_page(open, type, 0)
        open.serving[type] = list
    end
    local nth, profile, size = open_profiles.next(open, type, list.first or 1)
    if nth ~= 1 then
        list.first = nth or #list + 1
    end
    return nth, profile, size
end

-- Returns the number of free slots that fit `type`.
function open_profiles.free_for(open, type)
    local sum = 0
    local nth, profile = open_profiles.first(open, type)
    while nth do
        sum = sum + free_in(open, profile)
        nth, profile = open_profiles.next(open, type, nth + 2)
    end
    return sum
end

-- Returns the most specialised profiles of `type` with a free slot, at most MAX_COMPARED.
function open_profiles.most_specialised(open, type)
    local profiles = {}
    local nth, profile, size = open_profiles.first(open, type)
    local smallest_size = size
    while nth and size == smallest_size and #profiles < protocol.MAX_COMPARED do
        profiles[#profiles + 1] = profile
        nth, profile, size = open_profiles.next(open, type, nth + 2, smallest_size)
    end
    return profiles
end
