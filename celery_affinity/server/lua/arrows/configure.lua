-- configure: settings change at run time, or are reset to what app.conf says. They are in force for the next claim.
-- Only jobs with keys are touched, if the limits of keys change.
-- RETURNS {revision, more}; revision: of the settings, which grows with each change. more: as `fill` returns it.
-- Cost: O(settings given), and that of MOST_KEYS keys; the next ticks go on with the others.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include jobs/rule_changes.lua
-- @include generated/settings.lua
-- @include base/settings_in_force.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua

-- ARGV[1..]: name, value of each setting; "" resets a setting
local revision = settings_in_force.change(ARGV)
rule_changes.recheck()
return { revision, fill({}, "", read_settings(), which_slot.view())[1] }
