-- recover: claimed -> pending, for all jobs of a worker that ended, as its guard observed. A reclaimed job that had a
-- slot counts a delivery. Acked jobs are lost.
--
-- Returns {again, recovered, unfilled}. Nothing changes for an unknown worker.
--   again: 1 if the worker held more jobs and the caller must invoke the function again.
--   recovered: number of reclaimed jobs.
--   unfilled: see `fill`.
-- Cost: O(moves * log n), at most MOST_MOVES moves per invocation.
function functions.recover(ARGV)
    local worker = ARGV[1]

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { 0, 0, "" }
    end
    local settings = settings_in_force.read()
    local types = {}
    local recovered, gone = dead_workers.take_back(worker, protocol.MOST_MOVES, types, settings, true)
    return { gone and 0 or 1, recovered, fill.fill(types, "", settings, slot_choice.view())[1] }
end
