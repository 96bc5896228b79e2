-- recover: claimed -> pending, for all jobs of a worker whose guard saw it end. Each job that had a slot counts one
-- more delivery, but a job that had been acked is lost.
-- RETURNS {again, recovered, unfilled}; again 1: call again, the worker held more jobs. recovered: number of jobs that
-- came back. unfilled: as `fill` returns it. For an unknown worker nothing changes.
-- Cost: O(moves * log n), at most MOST_MOVES of them in one call.
function functions.recover(ARGV)
    local worker = ARGV[1] -- id

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { 0, 0, "" }
    end
    local settings = settings_in_force.read()
    local types = {}
    local recovered, gone = dead_workers.take_back(worker, protocol.MOST_MOVES, types, settings, true)
    return { gone and 0 or 1, recovered, fill.fill(types, "", settings, slot_choice.view())[1] }
end
