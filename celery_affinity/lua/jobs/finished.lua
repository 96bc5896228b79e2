-- finished: a job ends on the worker that ran it, and what is known of the job is kept for a while.
local ENDED_KEPT_S = protocol.ENDED_KEPT_S .. "" -- a text: to write a number takes as long as the command

-- Counts how long a job of `type` took on `worker`, so that observers can compare workers with each other: the moving
-- averages of the duration's logarithm, in thousandths, and of its distance from that average, and how many durations
-- they go by. Of a logarithm, since a few long jobs shall not make a healthy worker look slow. It is straight between
-- powers of two: so it is exact, on every machine.
local function count_pace(type, duration_us, worker)
    local name = "took:" .. type
    local took, profile = unpack(redis.call("HMGET", key.worker(worker), name, "profile"))
    if not profile then
        return -- somebody may have deleted the worker's row
    end
    local fraction, exponent = math.frexp(math.max(duration_us, 1))
    local its = math.floor((exponent + 2 * fraction) * 1000)
    local level, spread, number = string.match(took or "", "^(%d+) (%d+) (%d+)$")
    level, spread = tonumber(level) or its, tonumber(spread) or 0
    number = math.min((tonumber(number) or 0) + 1, protocol.PACE_AVERAGED_OVER)
    spread = spread + math.floor((math.abs(its - level) - spread) / number)
    level = level + math.floor((its - level) / number)
    redis.call("HSET", key.worker(worker), name, string.format("%.0f %.0f %d", level, spread, number))
end

-- Counts how long a job of `type` took, for the moving average that explains when slots become free, and for the pace
-- of its worker. Of short jobs, which are many, a sample is averaged.
local function count_duration(type, duration_us, fence, worker)
    if duration_us < protocol.SHORT_US and fence % protocol.SAMPLED_ONE_IN ~= 0 then
        return
    end
    local average_us = tonumber(redis.call("HGET", key.durations, type))
    if not average_us and redis.call("HEXISTS", key.capacity, type) == 0 then
        return -- no worker serves the type any more: the average went with the last worker that did
    end
    count_pace(type, duration_us, worker)
    average_us = average_us or duration_us
    average_us = average_us + math.floor((duration_us - average_us) / protocol.AVERAGED_OVER)
    redis.call("HSET", key.durations, type, call.text(average_us))
end

-- Ends a job whose claim was removed. `known`: what `claims.remove` returned. `state`: how the job ended. `why`: why,
-- in words; "" if nothing is said. `known.is_doubtful`: whether nobody knows that the task succeeded; `known.ran`: of
-- a batch, the call that was run; `known.keep_s`: for how long the job is known, nil for a minute. `stays`: whether
-- somebody is still to be told; else nil.
function finished.record(id, fence, known, state, why, stays)
    redis.call("UNLINK", key.message(id))
    if not known.claimed then
        redis.call("UNLINK", key.job(id)) -- the server has lost the job: an ack may be left of it
        return
    end
    if known.type and string.find(known.claimed, "^%d+$") then
        local duration_us = math.max(0, call.now_us - tonumber(known.claimed))
        count_duration(known.type, duration_us, tonumber(fence), known.worker)
        if figures.count(known.type, state, duration_us) == 1
            and redis.call("HEXISTS", key.capacity, known.type) == 0 then
            redis.call("EXPIRE", key.figures(known.type), protocol.FIGURES_KEPT_S)
        end
    end
    local keep_s = known.keep_s or ENDED_KEPT_S
    find_by.forget(id, known.task, known.stamps, known.expires, keep_s)
    if known.rules then
        callers.close(id, known.type, known.rules, known.name)
        if state == "done" and not known.is_doubtful then
            recurring.run(known.type, known.rules, known.name, id, known.ran or id, known.task)
        end
    end
    local its = key.job(id)
    redis.call("HSET", its, "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", key.job(id), "why", why)
    end
    if not stays then
        redis.call("EXPIRE", its, keep_s)
        if known.keep_s and marks.of(id) ~= protocol.BATCH then
            redis.call("ZADD", key.ended, call.now, id)
        end
    end
end
