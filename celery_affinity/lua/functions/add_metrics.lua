-- add_metrics: adds a worker's metric deltas (waits, times in a slot, ends), which are used only for reports.
-- `reports/metrics` lists the fields.
--
-- Returns 1, or 0 if the worker is unknown. The worker then joins and sends the deltas again.
-- Cost: O(fields); one invocation has little more than MOST_METRICS.
local OF_A_TYPE = 5 -- values before the fields of a type

-- Updates the moving average of a type's slot times with `number` times whose sum is `sum_us`. New average: average +
-- (sum - number * average) / max(number, AVERAGED_OVER), rounded down. The first average is sum / number.
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
    local number = tonumber(ARGV[2]) -- increases with each invocation; a repeated number changes nothing
    -- ARGV[3..]: for each type: type, number of jobs that ended in a slot, sum of their times in µs, pace of the worker
    -- (`schema/histograms`; "" if no job ended), number of fields; then for each field: name, increment

    local profile, counted = unpack(redis.call("HMGET", key.worker(worker), "profile", "counted"))
    if not profile then
        return 0
    elseif number <= (tonumber(counted) or 0) then
        return 1
    end
    -- Before the metrics: the worker repeats an invocation that fails on a corrupt key. Metrics can be lost, but must
    -- not be counted twice.
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
        elseif ended ~= "0" then -- otherwise the average was deleted with the last worker that served the type
            average(type, tonumber(ended), tonumber(sum_us))
        end
        if pace ~= "" then
            redis.call("HSET", key.worker(worker), "took:" .. type, pace)
        end
    end
    return 1
end
