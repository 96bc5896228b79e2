-- finished: a job ends on the worker that ran it, and what is known of the job is kept for a while.
local ENDED_KEPT_S = protocol.ENDED_KEPT_S .. "" -- a text: to write a number takes as long as the command

-- Ends a job whose claim was removed. `known`: what `claims.remove` returned. `state`: how the job ended. `why`: why,
-- in words; "" if nothing is said. `known.is_doubtful`: whether nobody knows that the task succeeded; `known.ran`: of
-- a batch, the call that was run; `known.keep_s`: for how long the job is known, nil for a minute. `stays`: whether
-- somebody is still to be told; else nil.
function finished.record(id, known, state, why, stays)
    redis.call("UNLINK", key.message(id))
    if not known.has_row then
        redis.call("UNLINK", key.job(id)) -- the server has lost the job: an ack may be left of it
        return
    end
    local keep_s = known.keep_s or ENDED_KEPT_S
    if known.has_more then
        find_by.forget(id, known.task, known.stamps, known.expires, keep_s)
    elseif known.task and known.task ~= "" then
        redis.call("EXPIRE", key.task(known.task), keep_s)
    end
    if known.rules then
        callers.close(id, known.type, known.rules, known.name)
        if state == "done" and not known.is_doubtful then
            recurring.run(known.type, known.rules, known.name, id, known.ran or id, known.task)
        end
    end
    local its = key.job(id)
    redis.call("HSET", its, "state", state, "ended", call.now)
    if why ~= "" then
        redis.call("HSET", its, "why", why)
    end
    if not stays then
        redis.call("EXPIRE", its, keep_s)
        if known.keep_s and marks.of(id) ~= protocol.BATCH then
            redis.call("ZADD", key.ended, call.now, id)
        end
    end
end
