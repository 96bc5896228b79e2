std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "unpack", "key" } -- linking.py spells the keys
max_line_length = 120
-- A shared part brings all its functions; a script uses some.
ignore = { "211/read_settings", "211/SCHEMA", "211/WITHDRAWN", "211/base" } -- join.lua, say, writes settings
