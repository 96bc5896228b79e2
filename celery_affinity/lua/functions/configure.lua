-- configure: changes settings at run time, or resets them to their values in app.conf. They are effective for the next
-- claim. Changed limits of keys can admit or block jobs that wait for these keys.
--
-- Returns {revision, unfilled}. revision: revision of the settings, which increases with each change. unfilled: see
-- `fill`.
-- Cost: O(settings given), plus the re-evaluation of at most MOST_KEYS keys. The next ticks continue with the other
-- keys.
function functions.configure(ARGV)
    -- ARGV[1..]: name, value, ...; "" resets a setting
    local revision = settings_in_force.change(ARGV)
    hooks.recheck()
    return { revision, fill.fill({}, "", settings_in_force.read(), slot_choice.view())[1] }
end
