-- ack_batch_reports: claimed or untold -> told, for calls of a batch that have got the result of its run. Calls of a dead batch
-- stay with it, for a replay.
-- RETURNS the number of other calls that have not; -1 if the batch is not the caller's to tell.
-- Cost: O(calls given).
function functions.ack_batch_reports(ARGV)
    local batch = ARGV[1] -- id
    local fence = ARGV[2] -- number of the caller's claim of the batch; "" for a batch that is untold
    local outcome = ARGV[3] -- how the calls ended: "acked" or "failed"; after a blank why may follow, in words
    -- ARGV[4..]: ids of calls

    if not batches.is_its_own(batch, fence) then
        return -1
    end
    local how, why = ends.read_outcome(outcome)
    local batch_state, primary = unpack(redis.call("HMGET", key.job(batch), "state", "primary"))
    for i = 4, #ARGV do
        local id = ARGV[i]
        local number = id ~= primary and redis.call("ZSCORE", key.callers(batch), id)
        if number and batch_state == "dead" then
            redis.call("ZREM", key.callers(batch), id)
            redis.call("ZADD", key.told_callers(batch), number, id)
        elseif number then
            batches.end_caller(id, batch, ends.STATE_AFTER[how], why)
        end
    end
    local left = redis.call("ZCARD", key.callers(batch))
    if fence ~= "" then
        return left - 1
    elseif left == 0 then
        requeue.mark_reported(batch)
    end
    return left
end
