std = "lua51"
read_globals = { "redis", "struct", "KEYS", "ARGV", "unpack", "key", "protocol", "job_fields" } -- linking.py spells the last three
max_line_length = 120
-- A shared part brings all its functions; a script uses some.
ignore = { -- join.lua, say, writes settings
    "211/default_of", "211/read_settings", "211/read_for_a_claim", "211/SCHEMA", "211/WITHDRAWN", "211/SEVERAL", "211/base", "211/fill",
    "211/has_rules", "211/of_type",
    "431", "432", -- a part that is defined within a function has names of its own
}
