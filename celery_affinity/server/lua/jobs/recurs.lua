-- recurs: the way to recurring calls, for jobs that merge: most match none, which costs them one command.
-- @include base/clock.lua
local ways_of_recurring -- the functions of recurring.lua, once a call has met a job that matches

-- RETURNS the names of the recurring calls that a job matches, separated by blanks; nil for none. `type`, `rules`,
-- `name`: what the row of the job says.
local function names_of_recurring(type, rules, name)
    local merge_key = type and string.match(rules or "", "^merge=(%S+)")
    return merge_key and redis.call("HGET", key.recurs, type .. " " .. merge_key .. " " .. (name or "")) or nil
end

-- Does for the recurring calls that match what the function `does` of recurring.lua does. The other
-- arguments are those of the function before.
local function recurs(does, type, rules, name, ...)
    local names = names_of_recurring(type, rules, name)
    if not names then
        return
    end
    if not ways_of_recurring then
-- @deferred jobs/recurring.lua
        ways_of_recurring = { match = recurring.match, run = recurring.run, take_back = recurring.take_back }
    end
    ways_of_recurring[does](names, ...)
end
