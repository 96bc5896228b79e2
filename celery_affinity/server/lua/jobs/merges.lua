-- merges: the way to calls that merge, deferred: most calls of a publish do not.
-- @include base/clock.lua
-- @include jobs/has_rules.lua
-- @include jobs/callers.lua
-- @include fleet/workers.lua
local ways_of_merging -- the functions of merging.lua, once a call has met a job that merges

-- Does for calls that merge what the function `does` of merging.lua does.
local function merges(does, ...)
    if not ways_of_merging then
-- @deferred jobs/merging.lua
        ways_of_merging = { begin = merging.begin, find = merging.find, has_room = merging.has_room,
            join = merging.join, open_for = merging.open_for, says_rules = merging.says_rules,
            would_wait = merging.would_wait }
    end
    return ways_of_merging[does](...)
end
