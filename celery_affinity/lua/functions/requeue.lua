-- requeue: claimed -> pending. Jobs come back to their places in their lanes, and their slots are free again.
-- RETURNS {unfilled, returned}; unfilled: as `fill` returns it. returned: number of jobs that are pending again; a
-- stale fencing number changes nothing.
-- Cost: O(jobs * log n), and that of `fill`.
function functions.requeue(ARGV)
    local worker = ARGV[1]
    local counted = ARGV[2] == "1" -- whether this counts as a delivery, which a drain does not
    -- ARGV[3..]: job id, fencing number of each

    local how = counted and "unsettled" or "returned"
    local settings = settings_in_force.read()
    local types = workers.types_of(worker)
    local served = #types
    for i = 3, #ARGV, 2 do
        if claims.held(worker, ARGV[i], ARGV[i + 1]) then
            types[#types + 1] = requeue.requeue(worker, ARGV[i], how, settings)
        end
    end
    local returned = #types - served
    free_slots.recount(worker)
    return { fill.fill(types, "", settings, slot_choice.view())[1], returned }
end
