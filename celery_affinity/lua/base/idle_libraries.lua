-- idle_libraries: makes Lua's garbage collector run continuously in small steps. With Lua's defaults (200, 200) the
-- collector waits until there is as much garbage as code. A few of every fifty invocations then take 5 to 15 ms more
-- each. The parameters are global to the server: they apply to all functions until the server ends.

function idle_libraries.collect_in_steps()
    collectgarbage("setpause", 110)
    collectgarbage("setstepmul", 40)
end
