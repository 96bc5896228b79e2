-- record: a worker hands over claims that ended while a recording was on (`celery affinity lab record`).
-- RETURNS 1; 0 if that recording has ended: then nothing is written.
-- Cost: O(claims that follow), of which one call has MOST_RECORDED at most.
local OF_A_CLAIM = 3 -- values

-- RETURNS what is known of the job of a claim, in words: its lane; the time of the claim if the job's row is still of
-- that claim; and the rules of a job that has some, with the name of the task. A job that has ended is known for a
-- minute.
local function known(id, fence)
    local lane, claimed, its_fence, rules, name =
        unpack(redis.call("HMGET", key.job(id), "lane", "claimed", "fence", "rules", "name"))
    local words = (lane or "") .. " " .. (its_fence == fence and claimed or "")
    return rules and words .. " " .. rules .. "\t" .. string.gsub(name or "", "\n", " ") or words
end

function arrows.record(ARGV)
    local recording = ARGV[1] -- id
    local worker = ARGV[2] -- facts of the worker, in JSON
    local claims_whole = ARGV[3] -- a row of words for each claim of which the worker knows all
    -- ARGV[4..]: job id, fencing number and row of each other claim

    local id, kept_ms = string.match(redis.call("GET", key.recording) or "", "^(%S+) %d+ %d+ (%d+)$")
    if id ~= recording then
        return 0
    end
    local rows = { claims_whole ~= "" and claims_whole or nil }
    for i = 4, #ARGV, OF_A_CLAIM do
        rows[#rows + 1] = ARGV[i + 2] .. " " .. known(ARGV[i], ARGV[i + 1])
    end
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MOST_PAGES, "*",
        "worker", worker, "claims", table.concat(rows, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
