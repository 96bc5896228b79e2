-- repair: what somebody else deleted or overwrote is made again where other keys say it, and else set aside. Called
-- every now and then, and by whoever saw an arrow fail.
-- RETURNS {next, {type, ...}, {what, ...}}; next: what to call again with, -1 if that was all. types: of which jobs may
-- wait. what: what was found, also by arrows since the last call.
-- Cost: O(profiles) at 0; then 100 workers, or the lanes of 20 types, in one call. O(workers) where sums are made
-- again: an arrow failed, or they do not agree.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/kinds.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include placing/heads.lua
-- @include jobs/spoiled.lua
-- @include jobs/tasks.lua

local first = tonumber(ARGV[1]) -- 0, or what the last call returned
local thorough = ARGV[2] == "1" -- whether an arrow failed
-- ARGV[3..]: what that one was called with

local WORKERS = 100
local MOST_CLAIMS = 200 -- a call ends with the worker whose claims exceed this
local TYPES = 20
local TYPES_AT = 1000000000 -- `first` of the first type; of the first worker it is 1
local MOST_JOBS = 1000 -- that are looked at of one index
local NOTE_BYTES = 72 -- nine numbers, as `leaders` writes them

local function set_aside(name)
    local aside = key.set_aside(string.sub(name, #base + 1))
    redis.call("RENAME", name, aside)
    redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)
    spoiled.note(name .. ", which held what it must not: it is " .. aside .. " now")
end

-- RETURNS whether the key is there, and of its kind.
local function is_there(name, kind)
    local found = redis.call("TYPE", name).ok
    if found ~= "none" and found ~= kind then
        set_aside(name)
    end
    return found == kind
end

local function is_whole(value)
    return value and #value <= protocol.LONGEST_NUMBER and string.find(value, "^%-?%d+$") ~= nil
end

local function is_number(value)
    local number = tonumber(value)
    return number and number == number and math.abs(number) ~= math.huge
end

-- Takes the fields out of a hash whose values are not `accepted`.
local function keep_fields(name, accepted)
    local pairs_of = redis.call("HGETALL", name)
    for i = 1, #pairs_of, 2 do
        if not accepted(pairs_of[i + 1], pairs_of[i]) then
            redis.call("HDEL", name, pairs_of[i])
            spoiled.note(pairs_of[i] .. " of " .. name .. ", which was " .. string.sub(pairs_of[i + 1], 1, 100))
        end
    end
end

-- Makes the hash say what `counted` does. `may_lack`: whether a field that is not there says 0.
local function make_hash(name, counted, may_lack)
    local found, changed = {}, false
    local pairs_of = redis.call("HGETALL", name)
    for i = 1, #pairs_of, 2 do
        found[pairs_of[i]] = pairs_of[i + 1]
        if counted[pairs_of[i]] == nil then
            redis.call("HDEL", name, pairs_of[i])
            changed = true
        end
    end
    for field, value in pairs(counted) do
        value = tostring(value)
        if found[field] ~= value and not (may_lack and value == "0" and not found[field]) then
            redis.call("HSET", name, field, value)
            changed = true
        end
    end
    if changed then
        spoiled.note(name .. ", made again")
    end
end

-- Makes the zset have the members of `wanted`: member -> score, or true if any will do.
local function make_zset(name, wanted)
    is_there(name, "zset")
    local found, changed = {}, false
    local members = redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    for i = 1, #members, 2 do
        found[members[i]] = tonumber(members[i + 1])
        if not wanted[members[i]] then
            redis.call("ZREM", name, members[i])
            changed = true
        end
    end
    for member, score in pairs(wanted) do
        if not found[member] or (score ~= true and found[member] ~= score) then
            redis.call("ZADD", name, score == true and clock.now or score, member)
            changed = true
        end
    end
    if changed then
        spoiled.note(name .. ", made again")
    end
end

-- The jobs of a task that has several, as `tasks` has them: numbered from 1.
local function look_at_jobs_of_task(task)
    is_there(key.task(task), "string")
    is_there(key.jobs_of_task(task), "zset")
    local its = redis.call("GET", key.task(task))
    local ids = redis.call("ZRANGE", key.jobs_of_task(task), 0, MOST_JOBS - 1, "WITHSCORES")
    local is_good = (its == tasks.SEVERAL) == (#ids > 0)
    for i = 2, #ids, 2 do
        is_good = is_good and is_whole(ids[i])
    end
    if is_good then
        return
    end
    if #ids == 0 then
        redis.call("UNLINK", key.task(task))
    elseif its and its ~= tasks.SEVERAL then
        ids[#ids + 1] = its
    end
    for i = 1, #ids, 2 do
        redis.call("ZADD", key.jobs_of_task(task), (i + 1) / 2, ids[i])
        redis.call("SET", key.task(task), tasks.SEVERAL)
    end
    spoiled.note(key.jobs_of_task(task) .. ", made again")
end

-- What a job is found by, and what its row names.
local function look_at_job(id)
    is_there(key.message(id), "string")
    if is_there(key.job(id), "hash") then
        local row = redis.call("HMGET", key.job(id), "task", "stamps")
        look_at_jobs_of_task(row[1] or "")
        for stamp in string.gmatch(row[2] or "", "%S+") do
            is_there(key.stamped(stamp), "zset")
            is_there(key.revoked_stamp(stamp), "string")
        end
    end
end

local function look_at_jobs(ids)
    for i = 1, math.min(#ids, MOST_JOBS) do
        look_at_job(ids[i])
    end
end

-- What the arrow that failed was called with: ids, names of tasks, of workers, of stamps.
local function look_at_names()
    for i = 3, #ARGV do
        if #ARGV[i] <= protocol.LONGEST_NAME then
            for _, kind in ipairs(KINDS) do
                if kind.of_each then
                    is_there(base .. kind.name .. ARGV[i], kind.kind)
                end
            end
            look_at_job(ARGV[i])
            look_at_jobs(redis.call("ZRANGE", key.stamped(ARGV[i]), 0, 99))
            look_at_jobs_of_task(ARGV[i])
            look_at_jobs({ redis.call("GET", key.task(ARGV[i])) or nil })
            look_at_jobs(redis.call("ZRANGE", key.jobs_of_task(ARGV[i]), 0, 99))
        end
    end
    for _, index in ipairs({ key.scheduled, key.expires, key.untold, key.dead }) do
        look_at_jobs(redis.call("ZRANGE", index, 0, 99))
    end
    keep_fields(key.leaders, function(note)
        return #note == NOTE_BYTES
    end)
    redis.call("UNLINK", key.leaders) -- what was found out once is found out again
end

-- What waits for a time that no publish wrote. `field`: of its row, what has the time.
local function mend_times(index, field)
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", index, "(2e18", "+inf", "LIMIT", 0, MOST_JOBS)) do
        local time = is_there(key.job(id), "hash") and redis.call("HGET", key.job(id), field)
        redis.call("ZADD", index, is_whole(time) and time or clock.now, id)
        spoiled.note("the time of job " .. id .. " in " .. index)
    end
end

local WORDS = { ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true }

local function is_setting(value, name)
    if type(default_of(name)) == "string" then
        return WORDS[value]
    end
    return is_number(value)
end

local function look_at_fixed_keys()
    for _, kind in ipairs(KINDS) do
        if not kind.of_each then
            is_there(base .. kind.name, kind.kind)
        end
    end
    keep_fields(key.counters, is_whole)
    keep_fields(key.durations, is_number)
    keep_fields(key.settings, is_setting)
    for _, name in ipairs(redis.call("HKEYS", key.conf)) do
        local own = redis.call("HGET", key.conf, name)
        if is_setting(own, name) and redis.call("HSETNX", key.settings, name, own) == 1 then
            spoiled.note(name .. " of " .. key.settings .. ", set to what app.conf said last")
        end
    end
    mend_times(key.scheduled, "enqueued")
    mend_times(key.expires, "expires")
    mend_times(key.untold, "ended")
    local turn = redis.call("GET", key.turn)
    if turn and not is_whole(turn) then
        set_aside(key.turn)
    end
end

-- RETURNS the ids of all workers of which anything is known, each once.
local function all_workers()
    local ids, seen = {}, {}
    for _, some in ipairs({
        redis.call("ZRANGE", key.beats, 0, -1), redis.call("ZRANGE", key.joined, 0, -1), redis.call("HVALS", key.names),
    }) do
        for _, id in ipairs(some) do
            if not seen[id] then
                ids[#ids + 1], seen[id] = id, true
            end
        end
    end
    return ids
end

-- RETURNS what `slots.row` does, then the worker's types; nil if that is not known.
local function row_of(worker)
    if not is_there(key.worker(worker), "hash") then
        return nil
    end
    local row = slots.row(worker, "types")
    if row[1] and is_whole(row[2]) and is_whole(row[3]) and row[4] and row[7] then
        return row
    end
    if row[4] ~= "0" then -- one that is being recovered goes without
        set_aside(key.worker(worker))
    end
    return nil
end

-- A worker of which no row is left. It joins again, or what it holds comes back when it has been silent for too long.
local function forget_unless_it_holds_something(worker)
    if redis.call("EXISTS", key.claims(worker)) == 1 then
        if not redis.call("ZSCORE", key.beats, worker) then
            redis.call("ZADD", key.beats, clock.now, worker)
        end
        return
    end
    local was_there = redis.call("ZREM", key.beats, worker) + redis.call("ZREM", key.joined, worker)
    keep_fields(key.names, function(each)
        return each ~= worker
    end)
    if was_there > 0 then
        spoiled.note("worker " .. worker .. ", of which only the name was left")
    end
end

-- What a worker holds, and what the job's row says of it. If another holds it as the row says, that one has it.
local function look_at_claim(worker, id, fence)
    if not is_there(key.job(id), "hash") then
        return -- its release finds nothing to end
    end
    local row = redis.call("HMGET", key.job(id), "worker", "fence", "state")
    if row[1] == worker and row[2] == fence and row[3] == "claimed" then
        return
    end
    if row[1] and row[1] ~= worker and redis.call("HGET", key.claims(row[1]), id) == row[2] then
        redis.call("HDEL", key.claims(worker), id)
    else
        redis.call("HSET", key.job(id), "worker", worker, "fence", fence, "state", "claimed", "claimed", clock.now)
    end
    spoiled.note("the claim of job " .. id .. " by " .. worker)
end

-- RETURNS how many jobs `worker` holds.
local function look_at_claims(worker)
    if not is_there(key.claims(worker), "hash") then
        return 0
    end
    local claimed, greatest = redis.call("HGETALL", key.claims(worker)), 0
    for i = 1, #claimed, 2 do
        greatest = math.max(greatest, is_whole(claimed[i + 1]) and tonumber(claimed[i + 1]) or 0)
        if thorough then
            look_at_job(claimed[i])
        end
        look_at_claim(worker, claimed[i], claimed[i + 1])
    end
    local fence = redis.call("GET", key.fence)
    if greatest > 0 and not fence or fence and (not is_whole(fence) or tonumber(fence) < greatest) then
        -- Greater than any that was given: nobody is given a thousand jobs each second since 1970.
        redis.call("SET", key.fence, string.format("%.0f", clock.now_us / 1000))
        spoiled.note(key.fence .. ", made again")
    end
    return #claimed / 2
end

-- Makes what is known of all workers together out of what is known of each.
local function make_sums()
    local members, slots_of, free_slots, profiles, capacity = {}, {}, {}, {}, {}
    local serving, free = {}, {}
    for _, worker in ipairs(all_workers()) do
        is_there(key.claims(worker), "hash")
        local row = row_of(worker)
        if row then
            local profile, left, was = count(worker, row)
            local types = workers.split(row[7])
            members[profile] = (members[profile] or 0) + 1
            slots_of[profile] = (slots_of[profile] or 0) + tonumber(row[2])
            free_slots[profile] = (free_slots[profile] or 0) + left
            profiles[profile] = row[7]
            free[profile] = free[profile] or {}
            free[profile][worker] = left > 0 or nil
            for _, type in ipairs(types) do
                capacity[type] = (capacity[type] or 0) + tonumber(row[2])
                serving[type] = serving[type] or {}
                serving[type][profile] = #types
            end
            if left ~= was then
                redis.call("HSET", key.worker(worker), "free", left)
                spoiled.note("the free slots of worker " .. worker .. ", counted again")
            end
            for _, index in ipairs({ key.beats, key.joined }) do
                if not redis.call("ZSCORE", index, worker) then
                    redis.call("ZADD", index, clock.now, worker)
                    spoiled.note(index .. ", which lacked worker " .. worker)
                end
            end
        else
            forget_unless_it_holds_something(worker)
        end
    end

    for _, types in ipairs(redis.call("HVALS", key.profiles)) do -- of profiles that nobody has any more, too
        for _, type in ipairs(workers.split(types)) do
            serving[type] = serving[type] or {}
        end
    end
    for _, profile in ipairs(redis.call("HKEYS", key.free_slots)) do
        free[profile] = free[profile] or {}
    end
    for type, its_profiles in pairs(serving) do
        make_zset(key.serving(type), its_profiles)
    end
    for profile, its_workers in pairs(free) do
        make_zset(key.free(profile), its_workers)
    end
    for type, number in pairs(capacity) do
        capacity[type] = number > 0 and number or nil
    end
    make_hash(key.members, members)
    make_hash(key.slots, slots_of)
    make_hash(key.free_slots, free_slots, true)
    make_hash(key.profiles, profiles)
    make_hash(key.capacity, capacity)
end

-- RETURNS a hash of numbers, and what they come to; nil if one is no number of slots or workers.
local function numbers_of(name)
    local numbers, sum = {}, 0
    local pairs_of = redis.call("HGETALL", name)
    for i = 1, #pairs_of, 2 do
        if not is_whole(pairs_of[i + 1]) or tonumber(pairs_of[i + 1]) < 0 then
            return nil
        end
        numbers[pairs_of[i]] = tonumber(pairs_of[i + 1])
        sum = sum + numbers[pairs_of[i]]
    end
    return numbers, sum
end

-- RETURNS whether what is known of all workers together agrees with itself. To count them all takes too long for each
-- time that nothing is wrong.
local function do_sums_agree()
    local members, number = numbers_of(key.members)
    local slots_of = numbers_of(key.slots)
    local free_slots = numbers_of(key.free_slots)
    local capacity, in_all = numbers_of(key.capacity)
    local joined = redis.call("ZCARD", key.joined)
    if not (members and slots_of and free_slots and capacity) or number ~= joined
        or redis.call("ZCARD", key.beats) ~= joined or redis.call("HLEN", key.names) > joined then
        return false
    end
    local profiles = redis.call("HGETALL", key.profiles)
    for i = 1, #profiles, 2 do
        local profile, types = profiles[i], workers.split(profiles[i + 1])
        local free = free_slots[profile] or 0
        local with_free = is_there(key.free(profile), "zset") and redis.call("ZCARD", key.free(profile)) or 0
        if not members[profile] or not slots_of[profile] or with_free > free or (with_free == 0 and free > 0) then
            return false
        end
        for _, type in ipairs(types) do
            in_all = in_all - slots_of[profile]
            if not is_there(key.serving(type), "zset")
                or tonumber(redis.call("ZSCORE", key.serving(type), profile) or 0) ~= #types then
                return false
            end
        end
    end
    return in_all == 0
end

-- RETURNS whether what is known of `worker` agrees with what is known of all.
local function does_agree(worker)
    local row = row_of(worker)
    if not row then
        return false
    end
    local profile, left, was = count(worker, row)
    local is_free = redis.call("ZSCORE", key.free(profile), worker) ~= false
    return left == was and is_free == (left > 0) and redis.call("HGET", key.profiles, profile) == row[7]
        and redis.call("ZSCORE", key.beats, worker) ~= false
end

-- RETURNS `first` of the next call.
local function look_at_workers(from)
    local some = redis.call("ZRANGE", key.joined, from, from + WORKERS - 1)
    local claimed, agree, following = 0, true, TYPES_AT
    for nth, worker in ipairs(some) do
        is_there(key.inbox(worker), "list")
        is_there(key.nudges(worker), "list")
        claimed = claimed + look_at_claims(worker)
        agree = does_agree(worker) and agree
        if claimed > MOST_CLAIMS or nth == WORKERS then
            following = 1 + from + nth
            break
        end
    end
    if not agree then
        make_sums()
    end
    return following
end

-- RETURNS the types that have pending jobs, or workers, in their order.
local function known_types()
    local types, seen = {}, {}
    for _, name in ipairs({ key.heads, key.capacity }) do
        for _, type in ipairs(redis.call("HKEYS", name)) do
            if not seen[type] then
                types[#types + 1], seen[type] = type, true
            end
        end
    end
    table.sort(types)
    return types
end

-- A job in the heads that is in no lane was taken out of it by a script that failed then, if it waits still.
local function put_back_what_waits(type, heads)
    for _, enqueued, id in lanes.each(heads) do
        if is_there(key.job(id), "hash") then
            local row = redis.call("HMGET", key.job(id), "state", "type", "lane", "enqueued", "deliveries")
            if row[1] == "pending" and row[2] == type and spoiled.can_wait(row[2], row[3], row[4], row[5])
                and not redis.call("ZSCORE", key.lane(type, row[3]), id) then
                redis.call("ZADD", key.lane(type, row[3]), enqueued, id)
                spoiled.note("job " .. id .. ", which was in no lane")
            end
        end
    end
end

local function look_at_lanes(type)
    local before = redis.call("HGET", key.heads, type) or ""
    local heads, number = {}, 0
    for _, mode in ipairs({ "queued", "demand" }) do
        for priority = 0, protocol.MAX_PRIORITY do
            is_there(key.lane(type, lanes.name(mode, priority)), "zset")
        end
    end
    put_back_what_waits(type, before)
    for _, mode in ipairs({ "queued", "demand" }) do
        for priority = 0, protocol.MAX_PRIORITY do
            local lane = lanes.name(mode, priority)
            local head = lanes.look(type, lane, "", 1, 0)
            if head ~= "" then
                heads[#heads + 1] = head
                if thorough then
                    look_at_jobs(redis.call("ZRANGE", key.lane(type, lane), 0, protocol.MOST_MOVES - 1))
                end
            end
        end
    end
    for lane, enqueued, id in lanes.each(before) do
        number = number + 1
        for _, head in ipairs(heads) do
            if head == lane .. " " .. enqueued .. " " .. id then
                number = number - 1
            end
        end
    end
    local text = table.concat(heads, " ")
    if number > 0 or #text ~= #before then
        lanes.rewrite(type, text, before)
        spoiled.note("the heads of type " .. type .. ", made again")
    end
end

-- RETURNS `first` of the next call, and the types that were looked at.
local function look_at_types(from)
    local types = known_types()
    local looked_at = {}
    for i = from + 1, math.min(#types, from + TYPES) do
        looked_at[#looked_at + 1] = types[i]
        look_at_lanes(types[i])
    end
    return from + TYPES < #types and TYPES_AT + from + TYPES or -1, looked_at
end

local following, looked_at = 1, {}
if first >= TYPES_AT then
    following, looked_at = look_at_types(first - TYPES_AT)
elseif first > 0 then
    following = look_at_workers(first - 1)
else
    look_at_fixed_keys()
    if thorough then
        look_at_names()
    end
    if thorough or not do_sums_agree() then
        make_sums()
    end
end
local what = redis.call("LRANGE", key.spoiled, 0, -1)
if #what > 0 then
    redis.call("UNLINK", key.spoiled)
    redis.call("HINCRBY", key.counters, "spoiled", #what)
end
return { following, looked_at, what }
