std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "unpack" }
max_line_length = 120
-- A shared part brings all its functions; a script uses some.
ignore = { "211/read_settings", "211/SCHEMA", "211/WITHDRAWN" } -- join.lua, say, writes settings
