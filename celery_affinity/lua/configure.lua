-- configure: settings change at run time, or are reset to what app.conf says. In force for the next claim; no pending
-- job is touched.
-- RETURNS the revision of the settings, which grows with each change.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/knobs.lua

-- ARGV[1..]: name, value of each; "" resets it
return knobs.change(ARGV)
