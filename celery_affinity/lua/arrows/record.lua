-- record: a worker hands over claims that ended while a recording was on (`celery affinity lab record`).
-- RETURNS 1; 0 if that recording has ended: then nothing is written.
-- Cost: O(claims that follow), of which one call has MOST_RECORDED at most.
local OF_A_CLAIM = 3 -- values

-- RETURNS the times of a claim and of its end, as texts; "" for a time that the job's row lacks. The row may be of a
-- later claim. Workers know these times by a guess of the server's clock, and two that differ by less change places.
local function times(fence, its_fence, claimed, ended)
    if its_fence ~= fence then
        return " "
    end
    return (claimed or "") .. " " .. (ended or "")
end

-- RETURNS what is known of the job of a claim, in words: its lane; its times; and the rules of a job that has some,
-- with the name of the task. A job that has ended is known for a minute.
local function known(id, fence)
    local its_fence, claimed, ended, lane, rules, name =
        unpack(redis.call("HMGET", key.job(id), "fence", "claimed", "ended", "lane", "rules", "name"))
    local words = (lane or "") .. " " .. times(fence, its_fence, claimed, ended)
    return rules and words .. " " .. rules .. "\t" .. string.gsub(name or "", "\n", " ") or words
end

-- RETURNS as much of a job whose lane its worker knows, and which has no rules.
local function known_of_plain(id, fence)
    return " " .. times(fence, unpack(redis.call("HMGET", key.job(id), "fence", "claimed", "ended")))
end

function arrows.record(ARGV)
    local recording = ARGV[1] -- id
    local worker = ARGV[2] -- facts of the worker, in JSON
    local plain = tonumber(ARGV[3]) -- number of claims of whose jobs the worker knows the lane: the first ones
    -- ARGV[4..]: job id, fencing number and row of each claim

    local id, kept_ms = string.match(redis.call("GET", key.recording) or "", "^(%S+) %d+ %d+ (%d+)$")
    if id ~= recording then
        return 0
    end
    local rows = {}
    for i = 4, #ARGV, OF_A_CLAIM do
        local of_job = #rows < plain and known_of_plain or known
        rows[#rows + 1] = ARGV[i + 2] .. " " .. of_job(ARGV[i], ARGV[i + 1])
    end
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MOST_PAGES, "*",
        "worker", worker, "claims", table.concat(rows, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
