-- resume: a pause ends; jobs that may start now get the free slots.
-- RETURNS {resumed, unfilled}; resumed 0: it was not paused. unfilled: as `fill` returns it.
-- Cost: that of `fill`.
function functions.resume(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"

    local was_paused = redis.call("HEXISTS", key.pauses, what)
    limit_changes.pause(what) -- in any case: somebody may have deleted what says that it is paused
    return { was_paused, fill.fill({}, "", settings_in_force.read(), slot_choice.view())[1] }
end
