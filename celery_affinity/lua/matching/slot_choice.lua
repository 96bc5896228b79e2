-- slot_choice: a view of all free slots, which finds the best one for a job: `best` is the rule in rules/slot. What a
-- view is, and the view of one worker's slots, is in free_slots.
-- A reason for the length: what a view knows lives in the locals of one function, for one call of an arrow.

-- RETURNS the view. Its members are those of `free_slots.own`, but for `left`.
function slot_choice.view()
    local view = {}
    local open = open_profiles.new()
    local counted = {} -- worker -> {worker, profile, left: free slots, was: free slots that the server has}
    local changed, changed_in = {}, {} -- worker -> the entry of `counted` that changed; profile -> those of its workers
    local idle, idle_since = {}, {} -- profile -> its longest idle worker that has not changed; since when, µs

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

    -- RETURNS the most specialised worker with a free slot; of several the longest idle, then the one with the smaller
    -- id. Of very many profiles with a free slot, only some are compared. If settings say so (`view.weights`), the
    -- points that equally specialised workers have for job `id` come first.
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

    -- A slot of `worker`, which `best` returned, is about to get a job.
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
        for worker, each in pairs(changed) do
            free_slots.write(worker, each.profile, each.left, each.was)
        end
    end

    return view
end
