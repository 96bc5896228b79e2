-- claim: pending -> inbox. Moves the best pending jobs to their most specialised free slots; other arrows end with
-- the same move, this one goes on with the types that one named as `more`.
-- RETURNS {more}
-- Cost: that of `fill`.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua

-- ARGV[1..]: types, encoded

return { fill(ARGV, "", read_settings(), free_slots.view())[1] }
