-- revoke: jobs that wait end at once, and take no slot; what is published under these task ids from now on, too.
-- A claimed job is its worker's to stop; should it come back, it ends here.
-- RETURNS {revoked, again}; again 1: call again, there may be more.
-- Cost: at most 10 jobs in one call.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/ends.lua

local by = ARGV[1] -- what ARGV[3..] are: "task" for task ids, "stamp" for stamps ("name:value"), encoded
local keep_s = ARGV[2] -- how long these names stay revoked
-- ARGV[3..]: names

local MAX = 10
local revoked = 0

-- A stamp is taken off each job that is looked at, so that a repeated call comes to the others.
local function next_of_stamp(stamp)
    local first = redis.call("ZPOPMIN", key.stamped(stamp))
    return first[1]
end

local looked_at = 0
for i = 3, #ARGV do
    local name = ARGV[i]
    if by == "task" then
        redis.call("SET", key.revoked(name), 1, "EX", keep_s)
        for id in string.gmatch(redis.call("GET", key.task(name)) or "", "%S+") do
            revoked = revoked + (ends.waiting(id, "revoked") and 1 or 0)
        end
    else
        redis.call("SET", key.revoked_stamp(name), clock.now, "EX", keep_s)
        local id = looked_at < MAX and next_of_stamp(name)
        while id do
            looked_at = looked_at + 1
            revoked = revoked + (ends.waiting(id, "revoked") and 1 or 0)
            id = looked_at < MAX and next_of_stamp(name)
        end
    end
end
return { revoked, looked_at == MAX and 1 or 0 }
