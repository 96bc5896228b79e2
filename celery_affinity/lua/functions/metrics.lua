-- metrics: server functions that add up what workers measure.

-- add_metrics: adds a worker's metric deltas (waits, times in a slot, ends), which are used only for reports, and the
-- runs of tasks, whose run times it learns. `reports/metrics` lists the fields.
--
-- Returns 1, or 0 if the worker is unknown. The worker then joins and sends the deltas again.
-- Cost: O(fields); one invocation has little more than MAX_METRICS. For the runs: see `run_times.add`.
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
    local runs = ARGV[3] -- successful runs by task, as `run_times.add` reads them; "" for none
    -- ARGV[4..]: for each type: type, number of jobs that ended in a slot, sum of their times in µs, pace of the worker
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
    local at = 4
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
    run_times.add(runs)
    return 1
end

-- record: stores claims that ended during a recording (`celery affinity lab record`). The server adds its own times.
-- Workers only estimate the server's clock, and two close times could swap their order.
--
-- Returns 1, or 0 if the recording has ended. Nothing is written then.
-- Cost: O(claims whose times are requested), at most MAX_RECORDED per invocation.
local OF_A_CLAIM = 2 -- values per claim

-- Returns facts of a claim's job, separated by spaces: the lane, and the times of the claim and of its end. A time is
-- "" if the job hash lacks it, or if it belongs to a later claim. If the job has rules or a due time, its rules,
-- the task name and, with a due time, the fields "due" and "head" follow, separated by tabs.
local function facts_of(id, fence)
    local its_fence, claimed, ended, lane, rules, name, due =
        unpack(redis.call("HMGET", key.job(id), "fence", "claimed", "ended", "lane", "rules", "name", "due"))
    if its_fence ~= fence then
        claimed, ended = "", ""
    end
    local words = (lane or "") .. " " .. (claimed or "") .. " " .. (ended or "")
    if not (rules or due) then
        return words
    end
    words = words .. " " .. (rules or "") .. "\t" .. string.gsub(name or "", "%c", " ")
    return due and words .. "\t" .. due .. "\t" .. (redis.call("HGET", key.job(id), "head") or "") or words
end

function functions.record(ARGV)
    local recording = ARGV[1] -- id
    local worker = ARGV[2] -- facts of the worker, in JSON
    local rows = ARGV[3] -- its claims, as written by `messages.page_query`
    local plain = tonumber(ARGV[4]) -- number of jobs for which only times are requested
    -- ARGV[5..]: ids of these jobs; then job id and fencing token of each claim for which more is requested

    local id, kept_ms = string.match(redis.call("GET", key.recording) or "", "^(%S+) %d+ %d+ (%d+)$")
    if id ~= recording then
        return 0
    end
    -- A plain job adds two lines: the times of its last claim and of its end, each "" if the job hash lacks it.
    local lines, n = {}, 0
    for i = 5, 4 + plain do
        local times = redis.call("HMGET", key.job(ARGV[i]), "claimed", "ended")
        lines[n + 1], lines[n + 2], n = times[1] or "", times[2] or "", n + 2
    end
    for i = 5 + plain, #ARGV, OF_A_CLAIM do
        lines[#lines + 1] = facts_of(ARGV[i], ARGV[i + 1])
    end
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MAX_PAGES, "*", "worker", worker,
        "claims", rows, "told", table.concat(lines, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
