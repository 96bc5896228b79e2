-- clock: the server's time, the only one that counts.
local clock = {}
do
    local time = redis.call("TIME")
    clock.now_us = time[1] * 1000000 + time[2]
    clock.now = time[1] .. string.sub("00000" .. time[2], -6) -- as a text
end

-- Lua would write 1.7e+15 for a time in µs.
function clock.text(us)
    return us == clock.now_us and clock.now or string.format("%.0f", us)
end
