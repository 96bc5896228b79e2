-- revoke: jobs that wait end at once, and take no slot; what is published under these task ids from now on, too.
-- A claimed job is its worker's to stop; should it come back, it ends here.
-- RETURNS {revoked, left, after}; left: with how many of the names, the last ones, the caller is to go on; after: what
-- it then says.
-- Cost: at most MOST_MOVES jobs in one call, and as many names, by the caller.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include jobs/ends.lua

local by = ARGV[1] -- what ARGV[4..] are: "task" for task ids, "stamp" for stamps ("name:value"), encoded
local keep_s = ARGV[2] -- how long these names stay revoked
local after = ARGV[3] -- number of the last job of the first name that a call before this one looked at; 0: none
-- ARGV[4..]: names


-- A stamp is taken off each job that is looked at, so that a repeated call comes to the others. RETURNS what
-- `find_by_task.some` does.
local function some_of_stamp(stamp, _, most)
    local found = redis.call("ZPOPMIN", key.stamped(stamp), most)
    local ids = {}
    for i = 1, #found, 2 do
        ids[#ids + 1] = found[i]
    end
    return ids, #ids == most
end

for i = 4, #ARGV do
    if by == "task" then
        redis.call("SET", key.revoked(ARGV[i]), 1, "EX", keep_s)
    else
        redis.call("SET", key.revoked_stamp(ARGV[i]), clock.now, "EX", keep_s)
    end
end
local some = by == "task" and find_by_task.some or some_of_stamp
local revoked, looked_at = 0, 0
for i = 4, #ARGV do
    if looked_at == protocol.MOST_MOVES then
        return { revoked, #ARGV - i + 1, 0 }
    end
    local ids, goes_on, last = some(ARGV[i], i == 4 and after or 0, protocol.MOST_MOVES - looked_at)
    for _, id in ipairs(ids) do
        looked_at = looked_at + 1
        revoked = revoked + (ends.waiting(id, "revoked") and 1 or 0)
    end
    if goes_on then
        return { revoked, #ARGV - i + 1, tonumber(last or 0) }
    end
end
return { revoked, 0, 0 }
