-- configure: settings change at run time, or are reset to what app.conf says. They are in force for the next claim; no
-- pending job is touched.
-- RETURNS the revision of the settings, which grows with each change.
-- Cost: O(settings given).
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include base/settings_in_force.lua

-- ARGV[1..]: name, value of each setting; "" resets a setting
return settings_in_force.change(ARGV)
