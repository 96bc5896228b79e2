-- leave: a worker goes. The jobs that it still holds are pending again with their first enqueue time; those that had
-- been acked are lost.
-- RETURNS {unfilled, unfinished, returned}; unfilled: as `fill` returns it. unfinished 1: call again, the worker still
-- holds jobs. returned: number of jobs that are pending again. For an unknown worker nothing changes.
-- Cost: at most MOST_MOVES claims in one call.
function functions.leave(ARGV)
    local worker = ARGV[1] -- id

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { "", 0, 0 }
    end
    local settings = settings_in_force.read()
    local types = {}
    local _, is_gone = dead_workers.take_back(worker, protocol.MOST_MOVES, types, settings, false)
    local returned = #types
    return { fill.fill(types, "", settings, slot_choice.view())[1], is_gone and 0 or 1, returned }
end
