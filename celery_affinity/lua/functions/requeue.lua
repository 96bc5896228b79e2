-- requeue: claimed -> pending. Returns jobs to their positions in their lanes, which frees their slots.
--
-- Returns {unfilled, returned}. unfilled: see `fill`. returned: number of jobs that are pending again. A stale fencing
-- token changes nothing.
-- Cost: O(jobs * log n), plus the cost of `fill`.
function functions.requeue(ARGV)
    local worker = ARGV[1]
    local counted = ARGV[2] == "1" -- true if a delivery is counted, false for a drain
    -- ARGV[3..]: job id, fencing token, ...

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
