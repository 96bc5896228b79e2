-- spoiled: keys and fields that another program deleted or overwrote. An arrow that finds one moves it out of the way,
-- records that, and goes on; a dispatcher logs the records (`repair`).

-- Records what was found, for a dispatcher's log.
function spoiled.record(what)
    redis.call("LPUSH", key.spoiled, what)
    redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)
end

-- RETURNS whether a job can wait whose row says this. The fields of a deleted row are false.
function spoiled.can_wait(type, lane, enqueued, deliveries)
    return type and type ~= "" and lanes.is_one(lane) and string.find(enqueued or "", "^%d+$")
        and string.find(deliveries or "0", "^%d+$")
end
