-- which_slot: a view of all free slots, which finds the best one for a job: `best` is the rule in rules/slot. What a
-- view is, and the view of one worker's slots, is in free_slots.
-- A reason for the length: what a view knows lives in the locals of one function, for one call of an arrow.

local PAGE = 50 -- profiles of a type that are read at once: mostly one of the first has a free slot
local ASKED_TOGETHER = 10 -- profiles: the free slots of more are asked for with one command
local FEW_OPEN = 50 -- if no more profiles have a free slot, these alone are looked up for each type

-- RETURNS the view. Its members are those of `free_slots.own`, but for `left`.
function which_slot.view()
    local view = {}
    local serving = {} -- type -> its profiles that had a free slot, each with its size; `read`, `first`: see `next_open`
    local free = {} -- profile -> free slots that the server has
    local open = false -- all profiles with a free slot, once they are read: then `free` has them all
    local occupied = {} -- profile -> slots that got a job in this call
    local counted = {} -- worker -> {worker, profile, left: free slots, was: free slots that the server has}
    local changed, changed_in = {}, {} -- worker -> the entry of `counted` that changed; profile -> those of its workers
    local idle, idle_since = {}, {} -- profile -> its longest idle worker that has not changed; since when, µs
    local known = { sizes = {}, rows = {} } -- what `placement` reads of profiles and workers, until one gets a job

    local function free_in(profile)
        if not free[profile] then
            free[profile] = not open and tonumber(redis.call("HGET", key.free_slots, profile)) or 0
        end
        return free[profile] - (occupied[profile] or 0)
    end

    -- Reads with one command what `free_in` would read for each profile of a page.
    local function read_free(page)
        local unknown = {}
        for i = 1, open and 0 or #page, 2 do
            unknown[#unknown + 1] = not free[page[i]] and page[i] or nil
        end
        if #unknown > ASKED_TOGETHER then
            for nth, slots_free in ipairs(redis.call("HMGET", key.free_slots, unpack(unknown))) do
                free[unknown[nth]] = tonumber(slots_free) or 0
            end
        end
    end

    -- Reads all profiles with a free slot, sorted by their names.
    local function read_open()
        open = {}
        local all = redis.call("HGETALL", key.free_slots)
        for i = 1, #all, 2 do
            local profile, slots_free = all[i], tonumber(all[i + 1]) or 0
            if slots_free > 0 then
                open[#open + 1] = profile
                free[profile] = free[profile] or slots_free
            end
        end
        table.sort(open)
    end

    -- Reads which of the few profiles with a free slot serve `type`, the smallest first.
    local function read_few(type, its)
        local found = {}
        for nth, size in ipairs(#open > 0 and redis.call("ZMSCORE", key.serving(type), unpack(open)) or {}) do
            found[#found + 1] = size and { tonumber(size), nth } or nil
        end
        table.sort(found, function(one, other)
            return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
        end)
        for _, each in ipairs(found) do
            its[#its + 1], its[#its + 2] = open[each[2]], each[1]
        end
        its.read = false
    end

    -- Reads some more of the profiles of `type`. If none of its first ones has a free slot, few may have one at all.
    local function read_more(type, its)
        if not open and its.read > 0 and #its == 0 then
            read_open()
        end
        if open and #open <= FEW_OPEN and #its == 0 then
            read_few(type, its)
            return
        end
        local page = redis.call("ZRANGE", key.serving(type), its.read, its.read + PAGE - 1, "WITHSCORES")
        read_free(page)
        for i = 1, #page, 2 do
            if free_in(page[i]) > 0 then
                its[#its + 1], its[#its + 2] = page[i], tonumber(page[i + 1])
            end
        end
        its.read = #page == 2 * PAGE and its.read + PAGE
    end

    -- RETURNS the first profile of `type` with a free slot at position `nth` or later, the most specialised first:
    -- its position, the profile, and its size; nil if there is none. Reads only as many as it needs: `read` is the
    -- number of profiles that were looked at; false: all.
    local function next_open(type, nth)
        local its = serving[type]
        while nth <= #its or its.read do
            if nth > #its then
                read_more(type, its)
            elseif free_in(its[nth]) > 0 then
                return nth, its[nth], its[nth + 1]
            else
                nth = nth + 2
            end
        end
        return nil
    end

    -- RETURNS the same of all. No slot comes free in a call: what has none now is not looked at again.
    local function first_open(type)
        local its = serving[type]
        if not its then
            its = { read = 0, first = 1 }
            serving[type] = its
        end
        local nth, profile, size = next_open(type, its.first)
        its.first = nth or #its + 1
        return nth, profile, size
    end

    -- Counts the free slots of `worker` before anything is written: an error for a spoiled row must come before a job
    -- is popped from its lane, or the job would be nowhere.
    local function count(worker)
        local profile, left, was = free_slots.count(worker)
        if not (profile and was) then
            error("spoiled row of worker " .. worker)
        end
        counted[worker] = { worker = worker, profile = profile, left = left, was = was }
    end

    -- RETURNS the longest idle worker of a profile, and since when it is idle. Ties go to the smaller id.
    local function longest_idle(profile)
        local others = changed_in[profile] or {}
        if idle[profile] and #others == 0 then
            return idle[profile], idle_since[profile]
        end
        local members = redis.call("ZRANGE", key.free(profile), "0", #others, "WITHSCORES")
        local best, best_since
        for i = 1, #members, 2 do
            if not changed[members[i]] then
                best, best_since = members[i], tonumber(members[i + 1])
                break
            end
        end
        idle[profile], idle_since[profile] = best, best_since
        for _, each in ipairs(others) do
            local since = call.now_us
            if each.left > 0
                and (not best or since < best_since or (since == best_since and each.worker < best)) then
                best, best_since = each.worker, since
            end
        end
        return best, best_since
    end

    -- Writes the slots that got jobs in this call, so that the server's keys say which are free.
    local function write_occupied()
        view.write()
        for profile, slots in pairs(occupied) do
            free[profile], known.sizes[profile] = free[profile] and free[profile] - slots, nil
        end
        for worker in pairs(changed) do
            known.rows[worker] = nil
        end
        counted, changed, changed_in, occupied, idle = {}, {}, {}, {}, {}
    end

    function view.free_for(_, type)
        local sum = 0
        local nth, profile = first_open(type)
        while nth do
            sum = sum + free_in(profile)
            nth, profile = next_open(type, nth + 2)
        end
        return sum
    end

    function view.any_free(_, type)
        return first_open(type) ~= nil
    end

    -- RETURNS the most specialised profiles of `type` with a free slot; of very many, some.
    local function most_specialised(type)
        local found = {}
        local nth, profile, size = first_open(type)
        local least = size
        while nth and size == least and #found < protocol.MOST_COMPARED do
            found[#found + 1] = profile
            nth, profile, size = next_open(type, nth + 2)
        end
        return found
    end

    -- RETURNS the most specialised worker with a free slot; of several the longest idle, then the one with the smaller
    -- id. Of very many profiles with a free slot, only some are compared. If settings say so (`view.weights`), the
    -- points that equally specialised workers have for job `id` come first.
    function view.best(_, type, id)
        local best, best_since
        if view.weights then
            write_occupied()
            best = placement.best(most_specialised(type), known, id, view.weights)
        else
            for _, profile in ipairs(most_specialised(type)) do
                local worker, since = longest_idle(profile)
                if not best or since < best_since or (since == best_since and worker < best) then
                    best, best_since = worker, since
                end
            end
        end
        if not best then
            error("spoiled free slots of type " .. type)
        elseif not counted[best] then
            count(best)
        end
        return best
    end

    -- A slot of `worker`, which `best` returned, is about to get a job.
    function view.occupy(_, worker)
        local slot = counted[worker]
        if not changed[worker] then
            changed[worker] = slot
            changed_in[slot.profile] = changed_in[slot.profile] or {}
            table.insert(changed_in[slot.profile], slot)
        end
        slot.left = slot.left - 1
        occupied[slot.profile] = (occupied[slot.profile] or 0) + 1
    end

    function view.write()
        for worker, each in pairs(changed) do
            free_slots.write(worker, each.profile, each.left, each.was)
        end
    end

    return view
end
