-- idle_libraries: has Lua's collector work in small portions, at all times. With Lua's own numbers (200, 200) it rests until
-- there is as much garbage as code, and then a few calls in each fifty pay for all of it: 5 to 15 ms each.
-- The numbers are those of the server: they hold for all functions until the server ends.

function idle_libraries.collect_in_steps()
    collectgarbage("setpause", 110)
    collectgarbage("setstepmul", 40)
end
