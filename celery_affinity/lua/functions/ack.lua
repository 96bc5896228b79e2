-- ack: inbox -> acked. An acked job will not run again. Its slot stays occupied until the job's release. Its message
-- also stays until then: if the worker dies, the message identifies the caller that gets the result.
--
-- Returns the number of acked jobs. A stale fencing token changes nothing.
-- Cost: O(jobs).
function functions.ack(ARGV)
    local worker = ARGV[1]
    -- ARGV[2..]: job id, fencing token, ...
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
