-- call: state of the current invocation of a server function. `begin` resets all fields, so no state outlives an
-- invocation, even a failed one. A field without a value is false.
--   now_us, now: server time in µs, as a number and as a string. Server functions use no other clock.
--   to_fill: type -> true, for types whose blocked jobs a rule has admitted. The server function fills these types.
--   claiming: the jobs of the current claim (`queue_heads`), set while a rule handles a job. The rule can change them.
--   keys: cached state of job keys (`key_state`).
--   limits, tenants: parsed settings, after their first use.
--   published: type -> number of published jobs, for types that live workers serve.
--   bounds: limits on pending jobs that a publish sets (`max_pending`).
--   sequence: sequence number of a release that returns jobs in its reply.
--   found: findings of a repair that changes nothing.
--   has_new_hints: true if the calling worker's hints have changed during the invocation.
--   near: jobs of the current claim that are local to its worker (`hooks.near`).
--   shares: "on" or "off" once it is known whether tenants have fair shares (`hooks.has_shares`).
--   due_settings: the settings of `due_times`, after their first use.

-- Limit of the integers that "%d" formats: 0 on a server of 32 bits.
local max_long

-- Copies globals to local variables. The first function that runs in a server process gets them from `its_globals`.
function call.take_globals()
    if not redis then
        redis, string, math, table, tonumber, unpack, ipairs, pairs, next = its_globals()
        max_long = string.format("%d", 2 ^ 53) == "9007199254740992" and 2 ^ 53 or 0
    end
end

-- The last server time in whole seconds, as a string, and the same time in µs. An invocation usually falls into the
-- same second as the previous one.
local second, second_us

-- Starts an invocation for the cohort whose Redis keys begin with `base`.
function call.begin(base)
    if not redis then
        call.take_globals()
    end
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
    -- False, not nil: Lua treats nil fields as free slots of the table, and reallocates the table when these are used
    -- up.
    call.claiming, call.keys, call.limits, call.bounds = false, false, false, false
    call.published, call.sequence, call.found, call.tenants = false, false, false, false
    call.has_new_hints, call.near, call.shares, call.due_settings = false, false, false, false
end

-- Raises an error, before any write, if the caller lacks the permissions of a worker. Producers may invoke functions,
-- but have no permission to delete keys (docs/how-to/security.md).
function call.refuse_producers()
    redis.call("UNLINK", key.base .. "nothing")
end

-- Returns a time in µs as digits. Lua's own conversion would return 1.7e+15. "%d" costs half of "%.0f".
function call.text(us)
    if us == call.now_us then
        return call.now
    elseif us > 0 and us < max_long and us % 1 == 0 then
        return string.format("%d", us)
    end
    return string.format("%.0f", us)
end

-- memo: caches values parsed from strings across invocations. A cached value may depend only on its string, so a
-- failover, a flush or another version cannot invalidate it. A full cache is cleared.

-- Returns an empty cache. `of`: string -> value. `max_entries`: maximum number of entries; nil means MAX_KEPT.
function memo.cache(max_entries)
    return { of = {}, number = 0, max_entries = max_entries }
end

-- Caches `meaning`, which must not be nil, as the value of `text`. Returns `meaning`.
function memo.keep(cache, text, meaning)
    if cache.number == (cache.max_entries or protocol.MAX_KEPT) then
        cache.of, cache.number = {}, 0
    end
    cache.of[text], cache.number = meaning, cache.number + 1
    return meaning
end

-- last_use: time of the library's last invocation. Dispatchers delete libraries of other versions that are no longer
-- used. `last_s` is the server time in seconds. Functions do not run on a replica. After a failover, the new primary
-- therefore counts from the first time `idle_s` is invoked.

-- Returns the number of seconds since the last invocation of a server function.
function last_use.idle_s()
    call.take_globals()
    local now_s = redis.call("TIME")[1]
    last_use.last_s = last_use.last_s or now_s
    return math.max(0, tonumber(now_s) - tonumber(last_use.last_s))
end

-- idle_libraries: makes Lua's garbage collector run continuously in small steps. With Lua's defaults (200, 200) the
-- collector waits until there is as much garbage as code. A few of every fifty invocations then take 5 to 15 ms more
-- each. The parameters are global to the server: they apply to all functions until the server ends.

function idle_libraries.collect_in_steps()
    collectgarbage("setpause", 110)
    collectgarbage("setstepmul", 40)
end
