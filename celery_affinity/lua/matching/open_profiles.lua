-- open_profiles: which profiles have a free slot, for a view of all slots (`which_slot`). Reads only as many as it
-- needs: some profiles of a type; and if none of these has a free slot, once all profiles that have one.
local FIRST, LAST = 20, "19" -- number of profiles of a type that are read at first; and the last one of these
local NEXT = 100 -- then so many; and then MOST_UNPACKED at a time
local ASKED_TOGETHER = 10 -- profiles: the free slots of more are asked for with one command
local FEW_OPEN = 50 -- if no more profiles have a free slot, these alone are looked up for each type

-- RETURNS what a call knows of profiles, a table.
-- free: profile -> its free slots on the server, of those that were read. occupied: profile -> its slots that got a job
-- in this call and are not written yet.
-- all: a list of all profiles with a free slot, nil until these are read; then a profile that `free` lacks has none.
-- serving: type -> a list "profile, size, profile, size, ..." of those that had a free slot when they were read, the
-- smallest first. Fields of this list: read: how many profiles of the type were looked at, nil if there are no more;
-- largest: the size of the last of these; first: where in the list the first profile begins that may still have a free
-- slot, nil for the beginning.
function open_profiles.new()
    return { free = {}, occupied = {}, serving = {} }
end

-- The occupied slots were written: the server says so now.
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

-- Reads with one command what `free_in` would read for each profile of a page.
local function read_free(open, page)
    local unknown = {}
    for i = 1, #page, 2 do
        unknown[#unknown + 1] = not open.free[page[i]] and page[i] or nil
    end
    if #unknown > ASKED_TOGETHER then
        for nth, slots_free in ipairs(redis.call("HMGET", key.free_slots, unpack(unknown))) do
            open.free[unknown[nth]] = tonumber(slots_free) or 0
        end
    end
end

-- Reads all profiles with a free slot, sorted by their names.
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

-- RETURNS which of the few profiles with a free slot serve `type`, and their sizes.
local function read_few(open, type)
    local all, found, its = open.all, {}, {}
    for nth, size in ipairs(#all > 0 and redis.call("ZMSCORE", key.serving(type), unpack(all)) or {}) do
        found[#found + 1] = size and { tonumber(size), nth } or nil
    end
    table.sort(found, function(one, other)
        return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
    end)
    for _, each in ipairs(found) do
        its[#its + 1], its[#its + 2] = all[each[2]], each[1]
    end
    return its
end

-- Reads profiles of `type`, from the rank `before` on. RETURNS those with a free slot, and their sizes.
local function read_page(open, type, before)
    local first, last, most = "0", LAST, FIRST -- mostly; the text of a number costs 2,000 instructions
    if before > 0 then
        most = before == FIRST and NEXT or protocol.MOST_UNPACKED
        first, last = before, before + most - 1
    end
    local page = redis.call("ZRANGE", key.serving(type), first, last, "WITHSCORES")
    local number, length = 0, #page
    if length > 2 * ASKED_TOGETHER and not open.all then
        read_free(open, page)
    end
    if length == 2 * most then
        page.read, page.largest = before + most, tonumber(page[length])
    end
    for i = 1, length, 2 do -- the table becomes the list of those with a free slot
        local profile, size = page[i], page[i + 1]
        page[i], page[i + 1] = nil, nil
        if free_in(open, profile) > 0 then
            page[number + 1], page[number + 2] = profile, tonumber(size)
            number = number + 2
        end
    end
    return page
end

-- Reads some more of the profiles of `type`, of which `its` are known. If none of the first ones has a free slot, few
-- may have one at all.
local function read_more(open, type, its)
    if #its == 0 and not open.all then
        read_all(open)
    end
    local more = #its == 0 and #open.all <= FEW_OPEN and read_few(open, type) or read_page(open, type, its.read)
    for _, each in ipairs(more) do
        its[#its + 1] = each
    end
    its.read, its.largest = more.read, more.largest
end

-- RETURNS the first profile of `type` with a free slot at position `nth` or later, the most specialised first: its
-- position, the profile, and its size; nil if there is none, or none of this `size` at most.
function open_profiles.next(open, type, nth, size)
    local its = open.serving[type]
    while true do
        local profile = its[nth]
        if profile and free_in(open, profile) > 0 then
            return nth, profile, its[nth + 1]
        elseif profile then
            nth = nth + 2
        elseif not its.read or size and its.largest > size then
            return nil
        else
            read_more(open, type, its)
        end
    end
end

-- RETURNS what `next` does, of all profiles of `type`. No slot comes free in a call: what has none is looked at once.
function open_profiles.first(open, type)
    local its = open.serving[type]
    if not its then
        its = open.all and #open.all <= FEW_OPEN and read_few(open, type) or read_page(open, type, 0)
        open.serving[type] = its
    end
    local nth, profile, size = open_profiles.next(open, type, its.first or 1)
    if nth ~= 1 then
        its.first = nth or #its + 1
    end
    return nth, profile, size
end

-- RETURNS how many free slots fit `type`.
function open_profiles.free_for(open, type)
    local sum = 0
    local nth, profile = open_profiles.first(open, type)
    while nth do
        sum = sum + free_in(open, profile)
        nth, profile = open_profiles.next(open, type, nth + 2)
    end
    return sum
end

-- RETURNS the most specialised profiles of `type` with a free slot; of very many, some.
function open_profiles.most_specialised(open, type)
    local found = {}
    local nth, profile, size = open_profiles.first(open, type)
    local least = size
    while nth and size == least and #found < protocol.MOST_COMPARED do
        found[#found + 1] = profile
        nth, profile, size = open_profiles.next(open, type, nth + 2, least)
    end
    return found
end
