-- repair: what somebody else deleted or overwrote is made again where other keys say it, and else set aside.
-- Dispatchers call it every now and then, and a process whose call of an arrow failed calls it at once.
-- RETURNS {next, {type, ...}, {what, ...}}; next: the `first` of the next call, -1 if that was all. types: those of
-- which pending jobs may have been found. what: what was found, by arrows since the last call as well.
-- Cost: O(profiles) at 0; then 100 workers, some lanes of types, 50 keys, or 50 recurring calls, in one call; of lanes
-- and keys fewer if there are MOST_LOOKS jobs with keys to look at. O(workers) if sums are made because an arrow failed
-- or they do not agree.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include repair/single_keys.lua
-- @include repair/named.lua
-- @include repair/workers.lua
-- @include repair/lanes.lua
-- @include repair/keys.lua
-- @include repair/recurring.lua

local first = tonumber(ARGV[1]) -- 0, or what the last call returned
local thorough = ARGV[2] == "1" -- whether an arrow failed
-- ARGV[3..]: what that arrow was called with

local WORKERS_AT, TYPES_AT, KEYS_AT = 1, 1000000000000, 2000000000000 -- `first` of the first worker, type and key
local RECURRING_AT, RECURS_AT = 3000000000000, 4000000000000 -- of the first recurring call, and of what puts these off

-- RETURNS what follows the keys.
local function after_keys()
    return redis.call("EXISTS", key.recurring, key.recurs) > 0 and RECURRING_AT or -1
end

local next_first, types = WORKERS_AT, {}
if first >= RECURS_AT then
    local cursor = mend_recurs(first - RECURS_AT)
    next_first = cursor and RECURS_AT + cursor or -1
elseif first >= RECURRING_AT then
    local position = mend_recurring(first - RECURRING_AT)
    next_first = position and RECURRING_AT + position or RECURS_AT
elseif first >= KEYS_AT then
    local position
    position, types = mend_keys(first - KEYS_AT)
    next_first = position and KEYS_AT + position or after_keys()
elseif first >= TYPES_AT then
    local position
    position, types = mend_types(first - TYPES_AT, thorough)
    local has_keys = redis.call("EXISTS", key.waiting_keys) == 1
    next_first = position and TYPES_AT + position or has_keys and KEYS_AT + first_key() or after_keys()
elseif first >= WORKERS_AT then
    local position = mend_workers(first - WORKERS_AT, thorough)
    next_first = position and WORKERS_AT + position or TYPES_AT
else
    mend_single_keys()
    if thorough then
        mend_named(ARGV, 3)
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
return { next_first, types, what }
