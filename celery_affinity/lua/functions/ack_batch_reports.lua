-- ack_batch_reports: ends the calls of a batch whose callers have received the result. The batch is claimed or
-- unreported. Calls of a dead batch are kept for a replay.
--
-- Returns the number of other calls that are unreported, or -1 if another process must report the batch.
-- Cost: O(calls given).
function functions.ack_batch_reports(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim; "" for an unreported batch
    local outcome = ARGV[3] -- "acked" or "failed", optionally followed by a space and the reason
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
            redis.call("ZADD", key.reported_calls(batch), number, id)
        elseif number then
            batches.end_caller(id, batch, ends.STATE_AFTER[how], why)
        end
    end
    local unreported = redis.call("ZCARD", key.callers(batch))
    if fence ~= "" then
        return unreported - 1
    elseif unreported == 0 then
        requeue.mark_reported(batch)
    end
    return unreported
end
