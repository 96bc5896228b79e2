-- repair: what somebody else deleted or overwrote is made again where other keys say it, and else set aside.
-- Dispatchers call it every now and then, and a process whose call of an arrow failed calls it at once.
-- RETURNS {next, {type, ...}, {what, ...}}; next: the `first` of the next call, -1 if that was all. types: those of
-- which pending jobs may have been found. what: what was found, by arrows since the last call as well.
-- Cost: O(profiles) at 0; then 100 workers, some lanes of types, 20 keys, or 50 recurring calls, in one call; of lanes
-- and keys fewer if there are MOST_LOOKS jobs with keys to look at. O(workers) if sums are made because an arrow failed
-- or they do not agree.
-- @include generated/keys.lua
-- @include repair/says_only.lua
-- @include base/full_memory.lua
-- @include generated/kinds.lua
-- @include generated/settings.lua
-- @include placing/type_changes.lua
-- @include repair/jobs.lua
-- @include repair/workers.lua
-- @include repair/lanes.lua
-- @include repair/keys.lua
-- @include repair/recurring.lua

local first = tonumber(ARGV[1]) -- 0, or what the last call returned
local thorough = ARGV[2] ~= "0" -- whether an arrow failed, or a person asks; 2: nothing is to change (says_only)
-- ARGV[3..]: what that arrow was called with

-- `first` of the first worker, type, key and recurring call, and of what puts these off. One table: the script has
-- nearly as many local names as Lua allows.
local AT
AT = { WORKERS = 1, TYPES = 1000000000000, KEYS = 2000000000000, RECURRING = 3000000000000, RECURS = 4000000000000,
    -- RETURNS what follows the keys.
    after_keys = function()
        return redis.call("EXISTS", key.recurring, key.recurs) > 0 and AT.RECURRING or -1
    end }
local next_first, types = AT.WORKERS, {}

local function mend()
    if first >= AT.RECURS then
        local cursor = mend_recurs(first - AT.RECURS)
        next_first = cursor and AT.RECURS + cursor or -1
    elseif first >= AT.RECURRING then
        local position = mend_recurring(first - AT.RECURRING)
        next_first = position and AT.RECURRING + position or AT.RECURS
    elseif first >= AT.KEYS then
        local position
        position, types = mend_keys(first - AT.KEYS)
        next_first = position and AT.KEYS + position or AT.after_keys()
    elseif first >= AT.TYPES then
        local position
        position, types = mend_types(first - AT.TYPES, thorough)
        local has_keys = redis.call("EXISTS", key.waiting_keys) == 1
        next_first = position and AT.TYPES + position or has_keys and AT.KEYS + first_key() or AT.after_keys()
    elseif first >= AT.WORKERS then
        local position = mend_workers(first - AT.WORKERS, thorough)
        next_first = position and AT.WORKERS + position or AT.TYPES
    else
-- @deferred repair/single_keys.lua
        mend_single_keys()
        if thorough then
-- @deferred repair/named.lua
            mend_named(ARGV, 3)
        end
        if thorough or not do_sums_agree() then
            make_sums()
        end
    end
end

if not redis.found then
    mend()
elseif not pcall(mend) then -- it met what it would have mended
    redis.found[#redis.found + 1] = "more, perhaps: it shows once the rest is repaired"
    next_first = first < AT.WORKERS and AT.WORKERS or first < AT.TYPES and AT.TYPES
        or first < AT.RECURRING and AT.after_keys() or -1
end
local what = redis.found or redis.call("LRANGE", key.spoiled, 0, -1)
if #what > 0 then
    redis.call("UNLINK", key.spoiled)
    redis.call("HINCRBY", key.counters, "spoiled", #what)
end
return { next_first, types, what }
