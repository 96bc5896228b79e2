-- slot_choice: a view of all free slots, which finds the best slot for a job: `best` implements `policy/placement.py`.
-- `free_slots` explains views, and has the view of one worker's slots.
-- The file is long because the state of a view is in the locals of one function, for one invocation.

-- Returns the view. It has the members of `free_slots.own` except `left`.
function slot_choice.view()
    local view = {}
    local open = open_profiles.new()
    local counted = {} -- worker -> {worker, profile, left: free slots, was: free slots stored on the server}
    local changed, changed_in = {}, {} -- worker -> its changed entry in `counted`; profile -> entries of its workers
    local idle, idle_since = {}, {} -- profile -> its longest idle unchanged worker; start of that time (µs)

    -- Counts the free slots of `worker` before anything is written. A corrupt hash must raise its error before a job is
    -- popped from its lane, since the job would otherwise be lost.
    local function count(worker)
        local profile, left, was = free_slots.count(worker)
        if not (profile and was) then
            error("spoiled row of worker " .. worker)
        end
        counted[worker] = { worker = worker, profile = profile, left = left, was = was }
    end

    -- Returns the worker of a profile with the longest idle time, and its start. Ties go to the smaller id.
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
        for _, slot in ipairs(others) do
            local since = call.now_us
            if slot.left > 0
                and (not best or since < best_since or (since == best_since and slot.worker < best)) then
                best, best_since = slot.worker, since
            end
        end
        return best, best_since
    end

    -- Writes the slots assigned in this invocation, so the server's keys list the free slots.
    local function write_occupied()
        view.write()
        open.rows = open.rows or {}
        for worker in pairs(changed) do
            open.rows[worker] = nil
        end
        open_profiles.written(open)
        counted, changed, changed_in, idle = {}, {}, {}, {}
    end

    function view.free_for(_, type)
        return open_profiles.free_for(open, type)
    end

    function view.any_free(_, type)
        return open_profiles.first(open, type) ~= nil
    end

    -- Returns the most specialised worker with a free slot; ties go to the longest idle time, then to the smaller id.
    -- At most MOST_COMPARED profiles are compared. With `view.weights` from the settings, the points of equally
    -- specialised workers for job `id` take precedence over idle time.
    function view.best(_, type, id)
        local best, best_size, best_since
        local compared = 0
        local nth, profile, size = open_profiles.first(open, type)
        if nth and view.weights then
            write_occupied()
            best = placement.best(open_profiles.most_specialised(open, type), open.rows, id, view.weights)
            nth = nil
        end
        while nth and size == (best_size or size) and compared < protocol.MOST_COMPARED do
            compared, best_size = compared + 1, size
            local worker, since = longest_idle(profile)
            if not best or since < best_since or (since == best_since and worker < best) then
                best, best_since = worker, since
            end
            nth, profile, size = open_profiles.next(open, type, nth + 2, best_size)
        end
        if not best then
            error("spoiled free slots of type " .. type)
        elseif not counted[best] then
            count(best)
        end
        return best
    end

    -- Assigns a slot of `worker`, which `best` returned.
    function view.occupy(_, worker)
        local slot = counted[worker]
        if not changed[worker] then
            changed[worker] = slot
            changed_in[slot.profile] = changed_in[slot.profile] or {}
            table.insert(changed_in[slot.profile], slot)
        end
        slot.left = slot.left - 1
        open.occupied[slot.profile] = (open.occupied[slot.profile] or 0) + 1
    end

    function view.write()
        for worker, slot in pairs(changed) do
            free_slots.write(worker, slot.profile, slot.left, slot.was)
        end
    end

    return view
end
