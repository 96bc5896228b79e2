-- view: all free slots, for one call of a script.
-- @include lib/slots.lua

function slots.view()
    local view = {}
    local serving, free = {}, {} -- type -> profiles and their sizes; profile -> free slots, as they were
    local taken = {} -- profile -> slots that were taken since then
    local changed, changed_in = {}, {} -- worker -> its slots; profile -> those of its workers

    local function profiles_of(type)
        if not serving[type] then
            serving[type] = redis.call("ZRANGE", key.serving(type), 0, -1, "WITHSCORES")
        end
        return serving[type]
    end

    local function free_slots(profile)
        if not free[profile] then
            free[profile] = tonumber(redis.call("HGET", key.free_slots, profile)) or 0
        end
        return free[profile] - (taken[profile] or 0)
    end

    -- RETURNS the slots of `worker`, which are about to change.
    local function change(worker)
        local profile, left, was = count(worker)
        local slot = { worker = worker, profile = profile, left = left, was = was }
        changed[worker] = slot
        changed_in[profile] = changed_in[profile] or {}
        table.insert(changed_in[profile], slot)
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

    -- The most specialised worker with a free slot; then the longest idle; then the smaller id.
    function view.best(type)
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

    -- `worker` is about to get a job.
    function view.take(worker)
        local slot = changed[worker] or change(worker)
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
