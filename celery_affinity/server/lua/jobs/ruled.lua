-- ruled: ways to what keys and rules of types do, deferred: most calls meet no rule.
-- @include base/clock.lua
-- @include generated/settings.lua
-- @include jobs/has_rules.lua
-- @include placing/heads.lua
-- @include fleet/workers.lua
-- @include jobs/find_by_task.lua

local ways -- the functions of keyed.lua, once a call has met a job with rules

-- Does for job `id` what the function `does` of keyed.lua does.
local function ruled(does, ...)
    if not ways then
-- @deferred jobs/keyed.lua
        ways = { enter = keyed.enter, leave = keyed.leave, may_start = keyed.may_start, hold = keyed.hold,
            free = keyed.free, recheck = keyed.recheck, settle_again = keyed.settle_again }
    end
    moved = moved or {}
    return ways[does](...)
end

-- Does for a whole type what the function `does` of type_rules.lua does.
local function of_type(does, ...)
-- @deferred placing/type_rules.lua
    moved = moved or {}
    local ways = { open = type_rules.open, hold = type_rules.hold, free = type_rules.free }
    return ways[does](...)
end
