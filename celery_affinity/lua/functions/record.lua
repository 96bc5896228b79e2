-- record: stores claims that ended during a recording (`celery affinity lab record`). The server adds its own times.
-- Workers only estimate the server's clock, and two close times could swap their order.
--
-- Returns 1, or 0 if the recording has ended. Nothing is written then.
-- Cost: O(claims whose times are requested), at most MOST_RECORDED per invocation.
local OF_A_CLAIM = 2 -- values per claim

-- Returns facts of a claim's job, separated by spaces: the lane, and the times of the claim and of its end. A time is
-- "" if the job hash lacks it, or if it belongs to a later claim. The rules and the task name follow if the job has
-- rules.
local function facts_of(id, fence)
    local its_fence, claimed, ended, lane, rules, name =
        unpack(redis.call("HMGET", key.job(id), "fence", "claimed", "ended", "lane", "rules", "name"))
    if its_fence ~= fence then
        claimed, ended = "", ""
    end
    local words = (lane or "") .. " " .. (claimed or "") .. " " .. (ended or "")
    return rules and words .. " " .. rules .. "\t" .. string.gsub(name or "", "\n", " ") or words
end

function functions.record(ARGV)
    local recording = ARGV[1] -- id
    local worker = ARGV[2] -- facts of the worker, in JSON
    local rows = ARGV[3] -- its claims, as written by `server.recorded_claims`
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
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MOST_PAGES, "*", "worker", worker,
        "claims", rows, "told", table.concat(lines, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
