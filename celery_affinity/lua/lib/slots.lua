-- slots: free slots are counted per profile (the set of types a worker serves), not per type and worker.
-- @include lib/clock.lua
local slots = {}

-- RETURNS what a worker's hash says of its slots, then its fields `...`.
function slots.row(worker, ...)
    return redis.call("HMGET", key.worker(worker), "profile", "slots", "other", "accepting", "free", "stalled", ...)
end

-- RETURNS the profile of a worker, its free slots as they are, and as they are written: slots - claims - other running
-- requests, of which there are less than none when claims that wait for a rate limit lend their slots. Derived, not
-- added up, so that no sequence of calls can leak one. nil for a worker that is not known.
local function count(worker, row)
    row = row or slots.row(worker)
    if not row[1] then
        return nil
    end
    local free = 0
    if row[4] == "1" and not row[6] and tonumber(row[2]) > 0 then -- who has no slot has none to lend
        free = math.max(0, tonumber(row[2]) - tonumber(row[3]) - redis.call("HLEN", key.claims(worker)))
    end
    return row[1], free, tonumber(row[5])
end

-- Writes that the free slots of a worker changed.
local function write(worker, profile, free, was)
    if free > 0 then
        redis.call("ZADD", key.free(profile), clock.now_us, worker)
    elseif was > 0 then
        redis.call("ZREM", key.free(profile), worker)
    end
    if free ~= was then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, free - was)
    end
end

-- Brings the free slots of a worker up to date with what it holds.
function slots.settle(worker)
    local profile, free, was = count(worker)
    if profile and free ~= was then
        write(worker, profile, free, was)
    end
end

-- RETURNS whether a free slot fits one of `types`.
function slots.are_free(types)
    for _, type in ipairs(types) do
        for _, profile in ipairs(redis.call("ZRANGE", key.serving(type), 0, -1)) do
            if tonumber(redis.call("HGET", key.free_slots, profile) or 0) > 0 then
                return true
            end
        end
    end
    return false
end

-- A view of the free slots that lasts for one call of a script: it reads each figure once, is told what changes, and
-- writes that at its end (`settle`).
function slots.view()
    local view = {}
    local serving, free = {}, {} -- type -> profiles and their sizes; profile -> free slots, as they were
    local gained = {} -- profile -> free slots since then
    local changed, changed_in = {}, {} -- worker -> its slots; profile -> those of its workers
    local callers = nil -- the slots of who calls
    local sure = {} -- types that no free slot fits but the caller's

    local function profiles_of(type)
        if not serving[type] then
            serving[type] = redis.call("ZRANGE", key.serving(type), 0, -1, "WITHSCORES")
        end
        return serving[type]
    end

    local function free_slots(profile)
        if not free[profile] then
            free[profile] = tonumber(redis.call("HGET", key.free_slots, profile) or 0)
        end
        return free[profile] + (gained[profile] or 0)
    end

    local function slots_of(worker, row)
        local profile, left, was = count(worker, row)
        return profile and { worker = worker, profile = profile, left = left, was = was }
    end

    local function change(slot)
        changed[slot.worker] = slot
        changed_in[slot.profile] = changed_in[slot.profile] or {}
        table.insert(changed_in[slot.profile], slot)
        gained[slot.profile] = (gained[slot.profile] or 0) + slot.left - slot.was
        return slot
    end

    -- The longest idle worker of a profile, then the smaller id. RETURNS it, and since when.
    local function longest_idle(profile)
        local others = changed_in[profile] or {}
        local members = redis.call("ZRANGE", key.free(profile), 0, #others, "WITHSCORES")
        local best, best_since
        for i = 1, #members, 2 do
            if not changed[members[i]] then
                best, best_since = members[i], tonumber(members[i + 1])
                break
            end
        end
        for _, each in ipairs(others) do
            local since = clock.now_us
            if each.left > 0
                and (not best or since < best_since or (since == best_since and each.worker < best)) then
                best, best_since = each.worker, since
            end
        end
        return best, best_since
    end

    -- `worker`, which calls, and serves `types`, holds less than before. Every other free slot was looked at when it
    -- became free, or when the jobs came that are pending: it fits at most those of the types in `again`, which come
    -- now.
    -- `row`: its `slots.row`.
    function view.freed(worker, row, types, again)
        callers = slots_of(worker, row)
        if not callers then
            return
        end
        if callers.left ~= callers.was then
            change(callers)
        end
        for _, type in ipairs(types) do
            sure[type] = not again[type]
        end
    end

    function view.free_for(type)
        local sum, profiles = 0, profiles_of(type)
        for i = 1, #profiles, 2 do
            sum = sum + free_slots(profiles[i])
        end
        return sum
    end

    function view.any_free(type)
        if sure[type] then
            return callers.left > 0
        end
        local profiles = profiles_of(type)
        for i = 1, #profiles, 2 do
            if free_slots(profiles[i]) > 0 then
                return true
            end
        end
        return false
    end

    -- The most specialised worker with a free slot; then the longest idle; then the smaller id.
    function view.best(type)
        if sure[type] then
            return callers.worker
        end
        local profiles = profiles_of(type)
        local best, best_size, best_since
        for i = 1, #profiles, 2 do
            local profile, size = profiles[i], tonumber(profiles[i + 1])
            if best and size > best_size then
                break
            end
            if free_slots(profile) > 0 then
                local worker, since = longest_idle(profile)
                if not best or since < best_since or (since == best_since and worker < best) then
                    best, best_size, best_since = worker, size, since
                end
            end
        end
        return best
    end

    function view.callers_left()
        return callers and callers.left or 0
    end

    -- `worker` is about to get a job.
    function view.take(worker)
        local slot = changed[worker]
        if not slot then
            slot = change(callers and callers.worker == worker and callers or slots_of(worker))
        end
        slot.left = slot.left - 1
        gained[slot.profile] = (gained[slot.profile] or 0) - 1
    end

    function view.settle()
        for worker, each in pairs(changed) do
            write(worker, each.profile, each.left, each.was)
        end
    end

    return view
end
