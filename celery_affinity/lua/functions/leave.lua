-- leave: a worker leaves. The jobs that it still holds are requeued with their original enqueue time. Acked jobs are
-- lost.
--
-- Returns {unfilled, unfinished, returned}. Nothing changes for an unknown worker.
--   unfilled: see `fill`.
--   unfinished: 1 if the worker still holds jobs and the caller must invoke the function again.
--   returned: number of jobs that are pending again.
-- Cost: at most MOST_MOVES claims per invocation.
function functions.leave(ARGV)
    local worker = ARGV[1]

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { "", 0, 0 }
    end
    local settings = settings_in_force.read()
    local types = {}
    local _, is_gone = dead_workers.take_back(worker, protocol.MOST_MOVES, types, settings, false)
    local returned = #types
    return { fill.fill(types, "", settings, slot_choice.view())[1], is_gone and 0 or 1, returned }
end
