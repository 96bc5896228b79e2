-- clock: the server's time, the only one that counts; `now` as a text.
local time = redis.call("TIME")
local clock = { now_us = time[1] * 1000000 + time[2], now = time[1] .. string.sub("00000" .. time[2], -6) }

-- Lua would write 1.7e+15 for a time in µs.
function clock.text(us)
    return us == clock.now_us and clock.now or string.format("%.0f", us)
end
