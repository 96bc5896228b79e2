-- drop: deletes dead letters for an operator.
--
-- Returns the number of deleted jobs. A job that is not a dead letter is kept. A batch with unreported calls is removed
-- from the dead letters, and is deleted after its last report.
-- Cost: at most MOST_MOVES jobs per invocation, limited by the caller, and MOST_FORGOTTEN calls per batch.
function functions.drop(ARGV)
    -- ARGV[1..]: job ids
    local dropped, is_seen = 0, {}
    for _, id in ipairs(ARGV) do
        local state, reason = unpack(redis.call("HMGET", key.job(id), "state", "reason"))
        local is_dead = state == "dead" and reason ~= "deleted" and not is_seen[id]
        is_seen[id] = true
        if is_dead and hooks.of(id).STANDS_FOR_CALLS and redis.call("ZSCORE", key.unreported, id) then
            redis.call("ZREM", key.dead, id) -- `ack_report` deletes it
            dropped = dropped + 1
        elseif is_dead or (not state and redis.call("ZSCORE", key.dead, id)) then -- another client deleted its hash
            requeue.delete(id)
            dropped = dropped + 1
        end
    end
    return dropped
end
