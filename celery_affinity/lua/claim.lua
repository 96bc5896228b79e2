-- claim: pending -> inbox. Moves the best pending jobs to their most specialised free slots; other arrows end with
-- the same move, this one goes on with the types that one named as `more`.
-- RETURNS {more}
-- Cost: that of `fill`.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/fill.lua
-- @include lib/view.lua

-- ARGV[1..]: types, encoded

return { fill(ARGV, "", read_settings(), slots.view())[1] }
