-- record: a worker hands over claims that ended while a recording was on (`celery affinity lab record`), and what it is
-- itself. The rows of the jobs say the rest: a job that has ended is known for a minute.
-- RETURNS 1; 0 if that recording has ended: then nothing is written.
-- Cost: O(claims), of which one call has MOST_RECORDED at most.
local OF_A_CLAIM = 3 -- values

-- RETURNS what is known of the job of a claim, in words: its lane, the time of the claim if the job's row is still of
-- that claim, and the rules of a job that has some, after the name of the task if calls of it merge.
local function known(id, fence)
    local lane, claimed, its_fence = unpack(redis.call("HMGET", key.job(id), "lane", "claimed", "fence"))
    local words = (lane or "-") .. " " .. (its_fence == fence and claimed or "-")
    if not string.find(id, hooks.any_mark, -1) then
        return words
    end
    local rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
    return words .. " " .. (rules or "") .. "\t" .. string.gsub(name or "", "\n", " ")
end

function arrows.record(ARGV)
    local recording = ARGV[1] -- id
    local worker = ARGV[2] -- facts of the worker, in JSON
    -- ARGV[3..]: job id, fencing number and facts, in words, of each claim

    local id, kept_ms = string.match(redis.call("GET", key.recording) or "", "^(%S+) %d+ %d+ (%d+)$")
    if id ~= recording then
        return 0
    end
    local rows = {}
    for i = 3, #ARGV, OF_A_CLAIM do
        local job, fence, facts = ARGV[i], ARGV[i + 1], ARGV[i + 2]
        rows[#rows + 1] = job .. " " .. fence .. " " .. facts .. " " .. known(job, fence)
    end
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MOST_PAGES, "*",
        "worker", worker, "claims", table.concat(rows, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
