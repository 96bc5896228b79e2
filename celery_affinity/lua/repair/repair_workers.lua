-- repair_workers: what follows from the rows and the claims of workers: their free slots, the sums of all workers, and
-- what the rows of claimed jobs say.
local TYPES = 7 -- position in a row of `row_of`, after those of `free_slots`
local DIGITS = 16 -- length of a profile, a prefix of the hash of its types (`Joining.profile`)

-- RETURNS a worker's row, its types, what it keeps of ended jobs, and its hints; nil if the row is gone or spoiled: it
-- is set aside then, and the worker joins again.
local function row_of(worker)
    local row = rebuild.exists(key.worker(worker), "hash") and free_slots.row(worker, "types", "keeps", "hints") or nil
    if row and rebuild.whole(row[free_slots.SLOTS]) and rebuild.whole(row[free_slots.OTHER])
        and row[free_slots.ACCEPTING] and row[TYPES]
        and row[free_slots.PROFILE] == string.sub(redis.sha1hex(row[TYPES]), 1, DIGITS) then
        return row
    elseif row and row[free_slots.ACCEPTING] ~= "0" then -- one whose jobs are being recovered goes without
        rebuild.set_aside(key.worker(worker))
    end
    return nil
end

-- Fixes what follows from the row and the claims of one worker. A worker without a row is forgotten, unless it holds
-- something: then its jobs come back once it has been silent for too long. RETURNS whether anything differed; its row,
-- nil if it has none; the number of its free slots; and whether it is known still.
local function fix_worker(worker)
    local holds, row = rebuild.exists(key.claims(worker), "hash"), row_of(worker)
    if not row then
        rebuild.one("zset", key.heartbeats, worker, holds and rebuild.any_time)
        rebuild.one("zset", key.joined, worker, holds and rebuild.any_time)
        return true, nil, 0, holds
    end
    local profile, left = free_slots.count(worker, row)
    return rebuild.each({
        { "hash", key.worker(worker), "free", left },
        { "hash", key.worker(worker), "terms", free_slots.terms_of(row) },
        { "zset", key.heartbeats, worker, rebuild.any_time },
        { "zset", key.joined, worker, rebuild.any_time },
        { "zset", key.free(profile), worker, left > 0 and rebuild.any_time },
        { "hash", key.profiles, profile, row[TYPES] },
    }), row, left, true
end

-- RETURNS whether the sums agree with each other. To count all workers would take too long while, as mostly, nothing is
-- wrong.
local function do_agree()
    local members, slots = rebuild.table_of(key.members), rebuild.table_of(key.slots)
    local number, slots_left = redis.call("ZCARD", key.joined), 0
    local workers_left = number
    for _, its_slots in ipairs(redis.call("HVALS", key.capacity)) do
        slots_left = slots_left + (tonumber(its_slots) or 0 / 0) -- what is no number equals no sum
    end
    for profile, types in pairs(rebuild.table_of(key.profiles)) do
        workers_left = workers_left - (rebuild.whole(members[profile]) or 0 / 0)
        slots_left = slots_left - (rebuild.whole(slots[profile]) or 0 / 0) * texts.number_of_words(types)
        members[profile] = nil
    end
    return workers_left == 0 and slots_left == 0 and not next(members) and redis.call("ZCARD", key.heartbeats) == number
        and redis.call("HLEN", key.names) <= number
end

-- RETURNS the sums, still empty: key -> { kind, entries }; also those of profiles and types whose workers have gone.
-- And the types that workers serve by the sums as they are.
local function empty_sums()
    local sums, served, their_types = {}, redis.call("HVALS", key.profiles), redis.call("HKEYS", key.capacity)
    served[#served + 1] = table.concat(their_types, " ")
    for _, name in ipairs({ "members", "slots", "free_slots", "profiles", "capacity" }) do
        sums[key[name]] = { "hash", {} }
    end
    for _, profile in ipairs(redis.call("HKEYS", key.free_slots)) do
        sums[key.free(profile)] = { "zset", {} }
    end
    for _, types in ipairs(served) do
        for _, type in ipairs(workers.split(types)) do
            sums[key.serving(type)] = { "zset", {} }
        end
    end
    return sums, their_types
end

-- Adds to `sums` a worker whose row is this, and which has `left` free slots.
local function add_worker(sums, worker, row, left)
    local profile, slots, types = row[free_slots.PROFILE], row[free_slots.SLOTS], workers.split(row[TYPES])
    local function set(kind, name, member, value)
        sums[name] = sums[name] or { kind, {} }
        sums[name][2][member] = value
    end
    local function add(name, member, number)
        set("hash", name, member, (sums[name][2][member] or 0) + number)
    end
    set("hash", key.profiles, profile, row[TYPES])
    set("zset", key.free(profile), worker, left > 0 and rebuild.any_time)
    add(key.members, profile, 1)
    add(key.slots, profile, slots)
    add(key.free_slots, profile, left)
    for _, type in ipairs(types) do
        add(key.capacity, type, slots)
        set("zset", key.serving(type), profile, #types)
    end
end

-- Fixes the rows of all workers, and what is known of them together: the sums of these rows. Cost: O(workers).
local function fix_sums()
    local sums, served = empty_sums()
    local is_known = {} -- worker -> whether it is one still
    for _, some in ipairs({
        redis.call("ZRANGE", key.heartbeats, 0, -1), redis.call("ZRANGE", key.joined, 0, -1),
        redis.call("HVALS", key.names),
    }) do
        for _, worker in ipairs(some) do
            local _, row, left
            if is_known[worker] == nil then
                _, row, left, is_known[worker] = fix_worker(worker)
            end
            if row then
                add_worker(sums, worker, row, left)
            end
        end
    end
    rebuild.all("hash", key.names, function(worker)
        return is_known[worker] and worker
    end)
    for name, sum in pairs(sums) do
        local kind, entries = unpack(sum)
        rebuild.all(kind, name, function(found, member)
            local should = entries[member]
            if should == 0 and (name == key.capacity or name == key.free_slots and not found) then
                return nil -- a type without slots is left out, and a profile without free slots may be
            end
            return type(should) ~= "function" and should or should and should(found)
        end, entries)
    end
    if not call.found then
        settings_in_force.renew_for_claims()
    end
    for _, type in ipairs(served) do
        if (sums[key.capacity][2][type] or 0) == 0 then
            repair_types.fix_published(type)
        end
    end
end

-- Fixes the sums if they do not agree, or if an arrow failed (`thorough`).
function repair_workers.fix_all(thorough)
    if thorough or not do_agree() then
        fix_sums()
    end
end

-- Fixes the sums if those of a profile do not agree.
function repair_workers.fix_profile(profile)
    local types = workers.split(redis.call("HGET", key.profiles, profile) or "")
    local free = rebuild.whole(redis.call("HGET", key.free_slots, profile) or "0")
    local is_good = free and rebuild.exists(key.free(profile), "zset") == (tonumber(free) > 0)
    for _, type in ipairs(types) do
        is_good = is_good and rebuild.exists(key.serving(type), "zset")
            and tonumber(redis.call("ZSCORE", key.serving(type), profile) or 0) == #types
    end
    if not is_good and not call.found then -- a repair that changes nothing has said all of it
        fix_sums()
    end
end

-- Fixes what follows from a claim: what the job's row says, that its type's limit counts it, and that it holds its key.
-- A job whose row names another worker that holds it is claimed by that worker alone.
local function fix_claim(worker, id, fence)
    repair_jobs.fix_batch(id)
    local holder, its_fence, type, lane, is_limited =
        rebuild.fields(key.job(id), "worker", "fence", "type", "lane", "limited")
    if holder == nil then
        return -- the release of the job finds nothing to end
    elseif holder and holder ~= worker and its_fence and rebuild.fields(key.claims(holder), id) == its_fence then
        rebuild.one("hash", key.claims(worker), id, nil)
        return
    end
    rebuild.each({
        { "hash", key.job(id), "worker", worker },
        { "hash", key.job(id), "fence", fence },
        { "hash", key.job(id), "state", "claimed" },
        { "hash", key.job(id), "claimed", rebuild.any_time },
        is_limited and type and lanes.is_one(lane)
            and { "zset", key.limited(type), id, lanes.number(lane) },
    })
    repair_keyed.fix_job(id)
end

-- Fixes a worker, its claims, and the counter of fencing numbers; the jobs that it holds as well, if `thorough`.
function repair_workers.fix(worker, _, thorough)
    rebuild.exists(key.inbox(worker), "list")
    rebuild.exists(key.nudges(worker), "list")
    local claimed = rebuild.exists(key.claims(worker), "hash") and redis.call("HGETALL", key.claims(worker)) or {}
    local greatest = 0
    for i = 1, #claimed, 2 do
        greatest = math.max(greatest, tonumber(rebuild.whole(claimed[i + 1])) or 0)
        if thorough then
            repair_jobs.fix(claimed[i])
        end
        fix_claim(worker, claimed[i], claimed[i + 1])
    end
    rebuild.one("string", key.fence, nil, function(found)
        if not found and greatest == 0 or rebuild.whole(found) and tonumber(found) >= greatest then
            return found
        end
        return call.now_us / 1000 -- greater than any: nobody is given a thousand jobs each second since 1970
    end)
    if rebuild.fields(key.worker(worker), "accepting") then
        repair_locality.fix_worker(worker)
    end
    if fix_worker(worker) and not call.found then
        fix_sums()
    end
end
