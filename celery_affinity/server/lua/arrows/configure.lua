-- configure: settings change at run time, or are reset to what app.conf says. In force for the next claim; no pending
-- job is touched.
-- RETURNS the revision of the settings, which grows with each change.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include base/settings_in_force.lua

-- ARGV[1..]: name, value of each; "" resets it
return settings_in_force.change(ARGV)
