-- call: the state of the call of an arrow that is under way. Nothing of it outlives the call, not even one that fails:
-- `begin` makes all of it anew. `now_us`, `now`: the server's time, µs, as a number and as a text: the only time that
-- arrows go by. `to_fill`: types of which a rule has let jobs start, which the arrow fills: type -> true.
-- `claiming`: the jobs (`candidates`) of a claim that is under way while a rule does its part, which may move some.
-- `keys`: what was read of keys of rules (`key_rows`). `limits`, `tenants`: what the settings say, once read.
-- `published`: type -> number of jobs, of types that live workers serve. `bounds`: those that a publish says.
-- `sequence`: the number of a release that carries jobs in its reply. `found`: what a repair says that changes nothing.
-- `has_new_hints`: the worker that calls holds other hints now than at its begin. `near`: what the claim that is under
-- way knows of jobs whose hints its worker holds (`hooks.near`). What a call does not have is false.

-- Makes globals local: what runs first in a process of the server has them from `its_globals`.
function call.take_globals()
    if not redis then
        redis, string, math, table, tonumber, unpack, ipairs, pairs, next = its_globals()
    end
end

-- A second of the server's clock, a text, and the same in µs: most calls come within that of the one before.
local second, second_us

-- Begins a call for the cohort whose keys begin with `base`.
function call.begin(base)
    call.take_globals()
    if key.base ~= base then
        key.begin(base)
    end
    local time = redis.call("TIME")
    last_use.last_s = time[1]
    if second ~= time[1] then
        second, second_us = time[1], time[1] * 1000000
    end
    call.now_us = second_us + time[2]
    local us = time[2]
    call.now = time[1] .. (#us == 6 and us or string.sub("00000" .. us, -6))
    if not call.to_fill or next(call.to_fill) then
        call.to_fill = {}
    end
    -- False, not nil: Lua takes fields that are nil for free places, and makes the table anew when these are used up.
    call.claiming, call.keys, call.limits, call.bounds = false, false, false, false
    call.published, call.sequence, call.found, call.tenants = false, false, false, false
    call.has_new_hints, call.near = false, false
end

-- Raises an error if the caller has not the rights of a worker, before anything is changed: producers may call
-- functions, and have no right to delete keys (docs/how-to/acl.md).
function call.refuse_producers()
    redis.call("UNLINK", key.base .. "nothing")
end

-- RETURNS a time in µs as digits: Lua itself would write 1.7e+15.
function call.text(us)
    return us == call.now_us and call.now or string.format("%.0f", us)
end
