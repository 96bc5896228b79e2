-- configure: settings change at run time, or are reset to what app.conf says. They are in force for the next claim. If
-- limits of keys change, jobs that wait for these keys may start, or may not any more.
-- RETURNS {revision, unfilled}; revision: of the settings, which grows with each change. unfilled: as `fill` returns
-- it.
-- Cost: O(settings given), and that of MOST_KEYS keys; the next ticks go on with the others.
function functions.configure(ARGV)
    -- ARGV[1..]: name, value of each setting; "" resets a setting
    local revision = settings_in_force.change(ARGV)
    hooks.recheck()
    return { revision, fill.fill({}, "", settings_in_force.read(), slot_choice.view())[1] }
end
