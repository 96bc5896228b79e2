-- leave: a worker goes. The jobs that it still holds are pending again with their first enqueue time; those that had
-- been acked are lost.
-- RETURNS {more, unfinished, returned}; more: as `fill` returns it. unfinished 1: call again, the worker still holds
-- jobs. returned: number of jobs that are pending again. For an unknown worker nothing changes.
-- Cost: at most MOST_MOVES claims in one call.
function arrows.leave(ARGV)
    local worker = ARGV[1] -- id

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { "", 0, 0 }
    end
    local settings = settings_in_force.read()
    local types = {}
    workers.close(worker)
    local claimed = come_back.some_of(worker, protocol.MOST_MOVES)
    for i = 1, math.min(#claimed, protocol.MOST_MOVES) do
        types[#types + 1] = come_back.put(worker, claimed[i], false, settings)
    end
    if #claimed <= protocol.MOST_MOVES then
        workers.remove(worker)
    end
    local returned = #types
    local unfinished = #claimed > protocol.MOST_MOVES and 1 or 0
    return { fill.fill(types, "", settings, which_slot.view())[1], unfinished, returned }
end
