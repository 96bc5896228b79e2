-- claim: pending -> inbox. Moves the best pending jobs to their most specialised free slots; other arrows end with
-- the same move, this one goes on where one answered `more`.
-- RETURNS {more}
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/fill.lua

-- ARGV[1..]: types, encoded
return { fill(ARGV, "", read_settings())[1] }
