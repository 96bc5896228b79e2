-- view: all free slots, for one call of a script.
-- @include placing/free_slots.lua

function slots.view()
    local MANY, CHUNK = 20, protocol.MOST_UNPACKED -- profiles and their sizes
    local view = {}
    local serving, free = {}, {} -- type -> profiles and their sizes; profile -> free slots, as they were
    local taken = {} -- profile -> slots that were taken since then
    local counted = {} -- worker -> its slots
    local changed, changed_in = {}, {} -- of those, which change; profile -> those of its workers
    local idle, idle_since = {}, {} -- profile -> its longest idle worker, if none of its workers changed; since when

    -- Reads together what `free_slots` would read one by one.
    local function read_free(profiles)
        for first = 1, #profiles, CHUNK do
            local some = {}
            for i = first, math.min(first + CHUNK - 1, #profiles), 2 do
                some[#some + 1] = profiles[i]
            end
            for i, slots_free in ipairs(redis.call("HMGET", key.free_slots, unpack(some))) do
                free[some[i]] = tonumber(slots_free) or 0
            end
        end
    end

    local function profiles_of(type)
        if not serving[type] then
            serving[type] = redis.call("ZRANGE", key.serving(type), 0, -1, "WITHSCORES")
            if #serving[type] > MANY then
                read_free(serving[type])
            end
        end
        return serving[type]
    end

    local function free_slots(profile)
        if not free[profile] then
            free[profile] = tonumber(redis.call("HGET", key.free_slots, profile)) or 0
        end
        return free[profile] - (taken[profile] or 0)
    end

    -- Counts what `worker` holds, before anything is written: a job that was taken out of its lane by then would be
    -- left nowhere if that is spoiled.
    local function look(worker)
        local profile, left, was = count(worker)
        if not (profile and was) then
            error("spoiled row of worker " .. worker)
        end
        counted[worker] = { worker = worker, profile = profile, left = left, was = was }
    end

    -- The longest idle worker of a profile, then the smaller id. RETURNS it, and since when.
    local function longest_idle(profile)
        local others = changed_in[profile] or {}
        if idle[profile] and #others == 0 then
            return idle[profile], idle_since[profile]
        end
        local members = redis.call("ZRANGE", key.free(profile), 0, #others, "WITHSCORES")
        local best, best_since
        for i = 1, #members, 2 do
            if not changed[members[i]] then
                best, best_since = members[i], tonumber(members[i + 1])
                break
            end
        end
        idle[profile], idle_since[profile] = best, best_since
        for _, each in ipairs(others) do
            local since = clock.now_us
            if each.left > 0
                and (not best or since < best_since or (since == best_since and each.worker < best)) then
                best, best_since = each.worker, since
            end
        end
        return best, best_since
    end

    function view.free_for(type)
        local sum, profiles = 0, profiles_of(type)
        for i = 1, #profiles, 2 do
            sum = sum + free_slots(profiles[i])
        end
        return sum
    end

    function view.any_free(type)
        local profiles = profiles_of(type)
        for i = 1, #profiles, 2 do
            if free_slots(profiles[i]) > 0 then
                return true
            end
        end
        return false
    end

    -- The most specialised worker with a free slot; then the longest idle; then the smaller id: of very many profiles
    -- with a free slot, those of some.
    function view.best(type)
        local profiles = profiles_of(type)
        local best, best_size, best_since
        local compared = 0
        for i = 1, #profiles, 2 do
            local profile, size = profiles[i], tonumber(profiles[i + 1])
            if best and size > best_size or compared == protocol.MOST_COMPARED then
                break
            end
            if free_slots(profile) > 0 then
                compared = compared + 1
                local worker, since = longest_idle(profile)
                if not best or since < best_since or (since == best_since and worker < best) then
                    best, best_size, best_since = worker, size, since
                end
            end
        end
        if not best then
            error("spoiled free slots of type " .. type)
        elseif not counted[best] then
            look(best)
        end
        return best
    end

    -- `worker`, which was the best, is about to get a job.
    function view.take(worker)
        local slot = counted[worker]
        if not changed[worker] then
            changed[worker] = slot
            changed_in[slot.profile] = changed_in[slot.profile] or {}
            table.insert(changed_in[slot.profile], slot)
        end
        slot.left = slot.left - 1
        taken[slot.profile] = (taken[slot.profile] or 0) + 1
    end

    function view.settle()
        for worker, each in pairs(changed) do
            write(worker, each.profile, each.left, each.was)
        end
    end

    return view
end
