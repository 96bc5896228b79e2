-- resume: ends a pause. Jobs that may start now get the free slots.
--
-- Returns {resumed, unfilled}. resumed: 0 if the target was not paused. unfilled: see `fill`.
-- Cost: the cost of `fill`.
function functions.resume(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"

    local was_paused = redis.call("HEXISTS", key.pauses, what)
    limit_changes.pause(what) -- always: another client may have deleted the field in `pauses`
    return { was_paused, fill.fill({}, "", settings_in_force.read(), slot_choice.view())[1] }
end
