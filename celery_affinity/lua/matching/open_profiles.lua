-- open_profiles: finds the profiles with a free slot, for a view of all slots (`slot_choice`). Reads as few profiles as
-- possible: some profiles of a type, then, if these have no free slot, all profiles with a free slot (once).
local FIRST, LAST = 20, "19" -- number of a type's profiles in the first read, and the index of the last one
local NEXT = 100 -- number in the second read; each further read has MOST_UNPACKED
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
        max = before == FIRST and NEXT or protocol.MOST_UNPACKED
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

-- Returns the most specialised profiles of `type` with a free slot, at most MOST_COMPARED.
function open_profiles.most_specialised(open, type)
    local profiles = {}
    local nth, profile, size = open_profiles.first(open, type)
    local smallest_size = size
    while nth and size == smallest_size and #profiles < protocol.MOST_COMPARED do
        profiles[#profiles + 1] = profile
        nth, profile, size = open_profiles.next(open, type, nth + 2, smallest_size)
    end
    return profiles
end
