-- sums: mends what is known of all workers together, from what is known of each.
-- @include fleet/workers.lua
-- @include repair/made_again.lua
-- @include repair/rows.lua

-- Adds a worker to the sums, and mends what the indexes and its row say of it.
local function add_worker(sums, worker, row)
    local profile, left, was = free_slots.count(worker, row)
    local number, types = tonumber(row[SLOTS]), workers.split(row[TYPES])
    sums.members[profile] = (sums.members[profile] or 0) + 1
    sums.slots[profile] = (sums.slots[profile] or 0) + number
    sums.free_slots[profile] = (sums.free_slots[profile] or 0) + left
    sums.profiles[profile] = row[TYPES]
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
            redis.call("ZADD", index, clock.now, worker)
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
local function make_sums()
    local sums = { members = {}, slots = {}, free_slots = {}, profiles = {}, capacity = {}, serving = {}, free = {} }
    for _, worker in ipairs(all_workers()) do
        has_type(key.claims(worker), "hash")
        local row = row_of(worker)
        if row then
            add_worker(sums, worker, row)
        else
            forget_unless_it_holds_something(worker)
        end
    end
    add_deserted(sums)
    for type, its_profiles in pairs(sums.serving) do
        make_zset(key.serving(type), its_profiles)
    end
    for profile, its_workers in pairs(sums.free) do
        make_zset(key.free(profile), its_workers)
    end
    make_hash(key.members, sums.members)
    make_hash(key.slots, sums.slots)
    make_hash(key.free_slots, sums.free_slots, true)
    make_hash(key.profiles, sums.profiles)
    make_hash(key.capacity, sums.capacity)
end
