-- garbage: has Lua's collector work in small portions, at all times. With Lua's own numbers (200, 200) it rests until
-- there is as much garbage as code, and then a few calls in each fifty pay for all of it: 5 to 15 ms each.
-- The numbers are those of the server: they hold for all scripts until the server ends.
collectgarbage("setpause", 110)
collectgarbage("setstepmul", 40)
