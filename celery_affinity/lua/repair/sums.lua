-- repair_sums: fixes what is known of all workers together, from what is known of each.

-- Adds a worker to the sums, and fixes what the indexes and its row say of it.
local function add_worker(sums, worker, row)
    local profile, left, was = free_slots.count(worker, row)
    local number, types = tonumber(row[free_slots.SLOTS]), workers.split(row[repair_rows.TYPES])
    sums.members[profile] = (sums.members[profile] or 0) + 1
    sums.slots[profile] = (sums.slots[profile] or 0) + number
    sums.free_slots[profile] = (sums.free_slots[profile] or 0) + left
    sums.profiles[profile] = row[repair_rows.TYPES]
    sums.free[profile] = sums.free[profile] or {}
    sums.free[profile][worker] = left > 0 or nil
    for _, type in ipairs(types) do
        sums.capacity[type] = (sums.capacity[type] or 0) + number
        sums.serving[type] = sums.serving[type] or {}
        sums.serving[type][profile] = #types
    end
    if left ~= was then
        redis.call("HSET", key.worker(worker), "free", left)
        spoiled.record("the free slots of worker " .. worker .. ", counted again")
    end
    for _, index in ipairs({ key.beats, key.joined }) do
        if not redis.call("ZSCORE", index, worker) then
            redis.call("ZADD", index, call.now, worker)
            spoiled.record(index .. ", which lacked worker " .. worker)
        end
    end
end

-- Adds empty entries for the profiles and types that no worker has any more, and drops types without slots.
local function add_deserted(sums)
    for _, types in ipairs(redis.call("HVALS", key.profiles)) do
        for _, type in ipairs(workers.split(types)) do
            sums.serving[type] = sums.serving[type] or {}
        end
    end
    for _, profile in ipairs(redis.call("HKEYS", key.free_slots)) do
        sums.free[profile] = sums.free[profile] or {}
    end
    for type, number in pairs(sums.capacity) do
        sums.capacity[type] = number > 0 and number or nil
    end
end

-- Makes the sums again. Cost: O(workers).
function repair_sums.make()
    local sums = { members = {}, slots = {}, free_slots = {}, profiles = {}, capacity = {}, serving = {}, free = {} }
    for _, worker in ipairs(repair_rows.all_workers()) do
        sound.has_type(key.claims(worker), "hash")
        local row = repair_rows.row_of(worker)
        if row then
            add_worker(sums, worker, row)
        else
            repair_rows.forget_unless_it_holds_something(worker)
        end
    end
    add_deserted(sums)
    for type, its_profiles in pairs(sums.serving) do
        made_again.zset(key.serving(type), its_profiles)
    end
    for profile, its_workers in pairs(sums.free) do
        made_again.zset(key.free(profile), its_workers)
    end
    made_again.hash(key.members, sums.members)
    made_again.hash(key.slots, sums.slots)
    made_again.hash(key.free_slots, sums.free_slots, true)
    made_again.hash(key.profiles, sums.profiles)
    made_again.hash(key.capacity, sums.capacity)
end
