-- clock: the server's time, the only one that scripts go by: `now_us` as a number, `now` as a text.
local time = redis.call("TIME")
local clock = { now_us = time[1] * 1000000 + time[2], now = time[1] .. string.sub("00000" .. time[2], -6) }

-- RETURNS a time in µs as digits: Lua itself would write 1.7e+15.
function clock.text(us)
    return us == clock.now_us and clock.now or string.format("%.0f", us)
end
