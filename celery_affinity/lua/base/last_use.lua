-- last_use: when the library was called last. A dispatcher deletes libraries of other versions that nobody calls any more.
-- `last_s`: the server's time, s. A replica does not call the functions: one that has become the primary counts from
-- the moment at which it is asked first.

-- RETURNS for how many seconds nobody has called an arrow.
function last_use.idle_s()
    call.take_globals()
    local now_s = redis.call("TIME")[1]
    last_use.last_s = last_use.last_s or now_s
    return math.max(0, tonumber(now_s) - tonumber(last_use.last_s))
end
