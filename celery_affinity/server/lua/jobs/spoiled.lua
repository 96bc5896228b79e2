-- spoiled: what somebody else deleted or overwrote in Redis. Who comes upon it takes it out of the way and goes on; a
-- dispatcher's log says so (`repair`).
-- @include placing/lanes.lua
local spoiled = {}

function spoiled.note(what)
    redis.call("LPUSH", key.spoiled, what)
    redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)
end

-- RETURNS whether a job can wait of which this is known. A row that was deleted says nothing.
function spoiled.can_wait(type, lane, enqueued, deliveries)
    return type and type ~= "" and lanes.is_one(lane) and string.find(enqueued or "", "^%d+$")
        and string.find(deliveries or "", "^%d+$")
end
