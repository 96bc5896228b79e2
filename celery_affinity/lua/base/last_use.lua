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
