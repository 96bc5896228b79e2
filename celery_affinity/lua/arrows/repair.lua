-- repair: what somebody else deleted or overwrote is made again where other keys say it, and else set aside.
-- Dispatchers call it every now and then, and a process whose call of an arrow failed calls it at once.
-- RETURNS {next, {type, ...}, {what, ...}}; next: the `first` of the next call, -1 if that was all. types: those of
-- which pending jobs may have been found. what: what was found, by arrows since the last call as well.
-- Cost: O(profiles) at 0; then 100 workers, some lanes of types, 20 keys, or 50 recurring calls, in one call; of lanes
-- and keys fewer if there are MOST_LOOKS jobs with keys to look at. O(workers) if sums are made because an arrow failed
-- or they do not agree.
-- `first` of the first worker, type, key and recurring call, and of what puts these off.
local WORKERS, TYPES, KEYS, RECURRING, RECURS = 1, 1000000000000, 2000000000000, 3000000000000, 4000000000000

-- RETURNS the `first` of what follows the keys.
local function after_keys()
    return redis.call("EXISTS", key.recurring, key.recurs) > 0 and RECURRING or -1
end

-- Fixes what is at `first`. `names`: what the arrow was called with that failed. RETURNS `first` of the next call, and
-- types.
local function fix(first, thorough, names)
    if first >= RECURS then
        local cursor = repair_recurring.fix_places(first - RECURS)
        return cursor and RECURS + cursor or -1, {}
    elseif first >= RECURRING then
        local position = repair_recurring.fix(first - RECURRING)
        return position and RECURRING + position or RECURS, {}
    elseif first >= KEYS then
        local position, types = repair_keys.fix(first - KEYS)
        return position and KEYS + position or after_keys(), types
    elseif first >= TYPES then
        local position, types = repair_lanes.fix(first - TYPES, thorough)
        local has_keys = redis.call("EXISTS", key.waiting_keys) == 1
        return position and TYPES + position or has_keys and KEYS + repair_keys.first() or after_keys(), types
    elseif first >= WORKERS then
        local position = repair_workers.fix(first - WORKERS, thorough)
        return position and WORKERS + position or TYPES, {}
    end
    repair_single_keys.fix()
    if thorough then
        repair_named.fix(names)
    end
    if thorough or not agreement.of_sums() then
        repair_sums.make()
    end
    return WORKERS, {}
end

-- RETURNS what `fix` does, which changes nothing. What it meets may be what it would have fixed before.
local function say(first, names)
    says_only.begin()
    local is_done, next_first, types = pcall(fix, first, true, names)
    if is_done then
        return next_first, types
    end
    call.found[#call.found + 1] = "more, perhaps: it shows once the rest is repaired"
    local following = first < WORKERS and WORKERS or first < TYPES and TYPES or first < RECURRING and after_keys() or -1
    return following, {}
end

function arrows.repair(ARGV)
    local first = tonumber(ARGV[1]) -- 0, or what the last call returned
    local how = ARGV[2] -- "1": an arrow failed, or a person asks; "2": nothing is to change (says_only); else "0"
    -- ARGV[3..]: what that arrow was called with
    local names = { unpack(ARGV, 3) }
    local next_first, types
    if how == "2" then
        next_first, types = say(first, names)
    else
        next_first, types = fix(first, how == "1", names)
    end
    local what = call.found or redis.call("LRANGE", key.spoiled, 0, -1)
    if #what > 0 then
        redis.call("UNLINK", key.spoiled)
        redis.call("HINCRBY", key.counters, "spoiled", #what)
    end
    return { next_first, types, what }
end
