-- add_metrics: a worker hands over what it added up of its jobs, for observers alone: waits, times in a slot and ends
-- (rules/metrics has the fields).
-- RETURNS 1; 0 if the worker is unknown, which then joins, and hands over once more.
-- Cost: O(fields), of which one call has little more than MOST_METRICS.
local OF_A_TYPE = 5 -- values before the fields of a type

-- Has the moving average of a type's times in a slot go by `number` more, whose sum is `sum_us`:
-- average + (sum - number * average) / max(number, AVERAGED_OVER), rounded down; the first average is sum / number.
local function average(type, number, sum_us)
    local average_us = tonumber(redis.call("HGET", key.durations, type))
    if average_us then
        local by_us = (sum_us - number * average_us) / math.max(number, protocol.AVERAGED_OVER)
        average_us = average_us + math.floor(by_us)
    else
        average_us = math.floor(sum_us / number)
    end
    redis.call("HSET", key.durations, type, call.text(average_us))
end

function functions.add_metrics(ARGV)
    local worker = ARGV[1]
    local number = tonumber(ARGV[2]) -- grows with each call; a repeated call, which has the same, changes nothing
    -- ARGV[3..]: of each type: type, jobs that ended in a slot, sum of their times, µs, the worker's pace
    -- (rules/pace; "" if none ended), how many fields follow; and of each field: name, by how much it grows

    local profile, counted = unpack(redis.call("HMGET", key.worker(worker), "profile", "counted"))
    if not profile then
        return 0
    elseif number <= (tonumber(counted) or 0) then
        return 1
    end
    -- First: a call that a spoiled key ends is repeated, and shall rather lose metrics than count them twice.
    redis.call("HSET", key.worker(worker), "counted", number)
    local at = 3
    while ARGV[at] do
        local type, ended, sum_us, pace, fields = unpack(ARGV, at, at + OF_A_TYPE - 1)
        local first, is_served = at + OF_A_TYPE, redis.call("HEXISTS", key.capacity, type) == 1
        at = first + 2 * tonumber(fields)
        for i = first, at - 1, 2 do
            redis.call("HINCRBY", key.metrics(type), ARGV[i], ARGV[i + 1])
        end
        if not is_served then
            redis.call("EXPIRE", key.metrics(type), protocol.METRICS_KEPT_S)
        elseif ended ~= "0" then -- else the average went with the last worker that served the type
            average(type, tonumber(ended), tonumber(sum_us))
        end
        if pace ~= "" then
            redis.call("HSET", key.worker(worker), "took:" .. type, pace)
        end
    end
    return 1
end
