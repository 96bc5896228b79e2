-- slot_choice: a view of all free slots, which finds the best slot for a job. `best` has a twin in the reference model.
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
    -- At most MAX_COMPARED profiles are compared. With `view.weights` from the settings, the points of equally
    -- specialised workers take precedence over idle time.
    function view.best(_, job)
        local type, best, best_size, best_since = job.type, nil, nil, nil
        local compared = 0
        local nth, profile, size = open_profiles.first(open, type)
        if nth and view.weights then
            write_occupied()
            best = placement.best(open_profiles.most_specialised(open, type), open.rows, job, view.weights)
            nth = nil
        end
        while nth and size == (best_size or size) and compared < protocol.MAX_COMPARED do
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

-- placement: chooses between equally specialised workers with a free slot if the setting `placement` is "weighted". The
-- worker with the most points gets the job, as in the reference model. Field "!placing" of key `type_rules` has the
-- weights, so a claim that reads that key anyway finds them, and other claims skip the lookup.
--
-- Cost: one command per worker of the sample.
placement.FIELD = "!placing"
local FEW_PROFILES = 10 -- up to this number, hint holders are looked up per profile, otherwise by their hashes
local MAX_HOLDERS = 10 -- limit on these hashes
local NAMES = {
    "placement", "locality_bonus", "tenant_turns",
    "placement_priority_weight", "placement_locality_weight", "placement_free_weight", "sample_size",
}

-- Returns the value of that field for the present settings: the locality bonus and any weights, or false if there are
-- neither. Weights that are all 0 are treated as absent. With fair shares, only start tags choose the job of a lane,
-- so there is no bonus.
function placement.words()
    local values = redis.call("HMGET", key.settings, unpack(NAMES))
    for i, name in ipairs(NAMES) do
        local default = defaults.OF[name]
        local is_valid = type(default) == "string" or tonumber(values[i])
        values[i] = is_valid and values[i] or tostring(default)
    end
    local bonus = values[3] ~= "share" and tonumber(values[2]) > 0 and values[2]
    local has_weights = tonumber(values[4]) ~= 0 or tonumber(values[5]) ~= 0 or tonumber(values[6]) ~= 0
    if values[1] == "weighted" and has_weights then
        return (bonus or "0") .. " " .. table.concat(values, " ", 4)
    end
    return bonus
end

-- Rewrites the field after a change of settings.
function placement.settings_have_changed()
    local value = placement.words()
    if value ~= redis.call("HGET", key.type_rules, placement.FIELD) then
        hooks.write_type_rule(placement.FIELD, value)
    end
end

local parsed_fields = memo.cache()

local function parse_field(text)
    local bonus, priority, locality_weight, free, sample = string.match(text, "^(%S+) ?(%S*) ?(%S*) ?(%S*) ?(%S*)$")
    return {
        bonus = tonumber(bonus) or 0,
        weights = tonumber(priority) and {
            priority = tonumber(priority), locality = tonumber(locality_weight), free = tonumber(free),
            sample = tonumber(sample),
        },
    }
end

-- Returns the parsed field, a read-only table.
--   bonus: points for a locality hit, or 0.
--   weights: weights of a worker's points, and the sample size; or nil.
function placement.read(text)
    return parsed_fields.of[text] or memo.keep(parsed_fields, text, parse_field(text))
end

-- Adds the free workers of a profile from rank `first` to `last` to `candidates`, each with the start of its idle time.
-- Returns the number of workers.
local function add_free_workers(candidates, profile, first, last)
    local members = redis.call("ZRANGE", key.free(profile), first, last, "WITHSCORES")
    for i = 1, #members, 2 do
        candidates[members[i]] = tonumber(members[i + 1])
    end
    return #members / 2
end

-- Returns a sample of the free workers of `profiles`: worker -> start of its idle time. Also returns true if the sample
-- has all these workers. It begins at a profile and a rank derived from the job id, so that different jobs get
-- different workers. It continues with the next profiles in a circle.
--   max: number of workers, 0 for all.
local function sample_of(profiles, id, max)
    local candidates, number = {}, tonumber(string.sub(redis.sha1hex(id), 1, 8), 16)
    local start = number % #profiles
    local remaining, rank = max > 0 and max or math.huge, 0
    if max > 0 then
        rank = math.floor(number / #profiles) % math.max(1, redis.call("ZCARD", key.free(profiles[start + 1])))
    end
    for nth = start, start + #profiles - 1 do
        local first = nth == start and rank or 0
        remaining = remaining - add_free_workers(candidates, profiles[nth % #profiles + 1], first,
            max > 0 and first + remaining - 1 or -1)
        if remaining == 0 then
            return candidates, false
        end
    end
    if rank > 0 then
        add_free_workers(candidates, profiles[start + 1], 0, math.min(rank, remaining) - 1)
    end
    return candidates, rank <= remaining
end

-- Returns free slots, priority and profile of `worker`.
--   cache: worker -> these fields, if read.
local function fields_of(worker, cache)
    cache[worker] = cache[worker] or redis.call("HMGET", key.worker(worker), "free", "priority", "profile")
    return cache[worker]
end

-- Returns the `holders` that have a free slot and one of `profiles`: worker -> start of its idle time.
local function free_holders(holders, profiles, cache)
    local idle_since, is_among = {}, {}
    if #profiles <= FEW_PROFILES then -- fewer lookups than the hash of each holder
        for _, profile in ipairs(profiles) do
            for nth, since in ipairs(redis.call("ZMSCORE", key.free(profile), unpack(holders))) do
                idle_since[holders[nth]] = tonumber(since) or idle_since[holders[nth]]
            end
        end
        return idle_since
    end
    for _, profile in ipairs(profiles) do
        is_among[profile] = true
    end
    for nth = 1, math.min(#holders, MAX_HOLDERS) do
        local worker = holders[nth]
        local free, _, profile = unpack(fields_of(worker, cache), 1, 3)
        if is_among[profile] and tonumber(free or 0) > 0 then
            idle_since[worker] = tonumber(redis.call("ZSCORE", key.free(profile), worker) or nil)
        end
    end
    return idle_since
end

-- Adds the free holders of a hint to `candidates`, up to MAX_FREE_HOLDERS workers. Returns a table: worker -> true, for
-- the added workers.
--   has_all: true if `candidates` has all free workers of `profiles`.
local function add_holders(candidates, has_all, holders, profiles, cache)
    local is_holder, number = {}, 0
    local idle_since = (has_all or #holders == 0) and candidates or free_holders(holders, profiles, cache)
    for _, worker in ipairs(holders) do
        if idle_since[worker] and number < protocol.MAX_FREE_HOLDERS then
            number, is_holder[worker], candidates[worker] = number + 1, true, idle_since[worker]
        end
    end
    return is_holder
end

-- Returns the best worker for `job` in `profiles`, the most specialised ones with a free slot.
--   cache: worker -> fields that earlier choices have read and that are still valid.
function placement.best(profiles, cache, job, weights)
    local best_worker, best_points, best_since
    local candidates, has_all = sample_of(profiles, job.id, weights.sample)
    local is_holder = id_suffix.has_hint(job.id)
        and add_holders(candidates, has_all, locality.holders(job), profiles, cache) or {}
    for worker, since in pairs(candidates) do
        local free, priority = unpack(fields_of(worker, cache), 1, 2)
        local points = (tonumber(priority) or 0) * weights.priority + (is_holder[worker] and weights.locality or 0)
            + (tonumber(free) or 0) * weights.free
        if not best_worker or points > best_points
            or (points == best_points and (since < best_since or (since == best_since and worker < best_worker))) then
            best_worker, best_points, best_since = worker, points, since
        end
    end
    return best_worker
end
