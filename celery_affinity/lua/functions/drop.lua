-- drop: dead letters are deleted, because a person asked for it.
-- RETURNS the number of jobs deleted; a job that is not dead stays. A batch goes when all of its callers were told.
-- Cost: at most MOST_MOVES jobs in one call, by the caller, and MOST_FORGOTTEN calls of each batch.
function functions.drop(ARGV)
    -- ARGV[1..]: job ids
    local dropped, is_seen = 0, {}
    for _, id in ipairs(ARGV) do
        local state, reason = unpack(redis.call("HMGET", key.job(id), "state", "reason"))
        local is_dead = state == "dead" and reason ~= "deleted" and not is_seen[id]
        is_seen[id] = true
        if is_dead and hooks.of(id).STANDS_FOR_CALLS and redis.call("ZSCORE", key.untold, id) then
            redis.call("ZREM", key.dead, id) -- `told` deletes it
            dropped = dropped + 1
        elseif is_dead or (not state and redis.call("ZSCORE", key.dead, id)) then -- somebody deleted its row
            requeue.delete(id)
            dropped = dropped + 1
        end
    end
    return dropped
end
