-- ack: inbox -> acked. The worker answers for the message: the job will not run again. The slot stays occupied until
-- the job's release, and the message stays until then: if the worker dies, the message says whom to tell.
-- RETURNS the number of jobs acked; a stale fencing number changes nothing.
-- Cost: O(jobs).
function functions.ack(ARGV)
    local worker = ARGV[1]
    -- ARGV[2..]: job id, fencing number of each
    local acked = 0
    for i = 2, #ARGV, 2 do
        local id = ARGV[i]
        if claims.held(worker, id, ARGV[i + 1]) then
            redis.call("HSET", key.job(id), "acked", 1)
            acked = acked + 1
        end
    end
    return acked
end
