-- record: a worker hands over claims that ended while a recording was on (`celery affinity lab record`). The server
-- adds its own times: workers know these by a guess of its clock, and two that differ by less change places.
-- RETURNS 1; 0 if that recording has ended: then nothing is written.
-- Cost: O(claims that are asked for), of which one call has MOST_RECORDED at most.
local OF_A_CLAIM = 2 -- values

-- RETURNS what is known of the job of a claim, in words: its lane; the times of the claim and of its end, "" for one
-- that the row has not, or has of a later claim; and the rules of a job that has some, with the name of the task.
local function known(id, fence)
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
    local rows = ARGV[3] -- its claims, as `server.recorded_claims` writes them
    local plain = tonumber(ARGV[4]) -- number of jobs whose times alone are asked for
    -- ARGV[5..]: id of each of these; job id and fencing number of each claim of whose job more is asked for

    local id, kept_ms = string.match(redis.call("GET", key.recording) or "", "^(%S+) %d+ %d+ (%d+)$")
    if id ~= recording then
        return 0
    end
    -- Of a plain job two lines: the time of its last claim, and that of its end, "" for one that its row has not.
    local told, n = {}, 0
    for i = 5, 4 + plain do
        local its = redis.call("HMGET", key.job(ARGV[i]), "claimed", "ended")
        told[n + 1], told[n + 2], n = its[1] or "", its[2] or "", n + 2
    end
    for i = 5 + plain, #ARGV, OF_A_CLAIM do
        told[#told + 1] = known(ARGV[i], ARGV[i + 1])
    end
    redis.call("XADD", key.recorded(recording), "MAXLEN", "~", protocol.MOST_PAGES, "*", "worker", worker,
        "claims", rows, "told", table.concat(told, "\n"))
    redis.call("PEXPIRE", key.recorded(recording), string.format("%.0f", math.max(1, kept_ms - call.now_us / 1000)))
    return 1
end
