-- ack: the message is settled. Its body is deleted; the slot stays taken until the job's release.
-- RETURNS the number of jobs acked; a stale fencing number changes nothing.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/claims.lua

local worker = ARGV[1]
-- ARGV[2..]: job id, fencing number of each
local acked = 0
for i = 2, #ARGV, 2 do
    local id = ARGV[i]
    if claims.held(worker, id, ARGV[i + 1]) then
        redis.call("UNLINK", key.message(id))
        redis.call("HSET", key.job(id), "acked", 1)
        acked = acked + 1
    end
end
return acked
