-- ack_report: removes unreported ends after a process has reported them. A process can instead leave ends to other
-- apps, or discard unreadable ends.
--
-- Returns the number of the ends that were unreported. A batch with unreported calls stays unreported: see "shared" in
-- next_report.lua.
-- Cost: at most MOST_MOVES jobs per invocation, limited by the caller, and MOST_SHARED calls of deleted batches.

-- Leaves the report of job `id` to apps other than `app`, because `app` does not define the job's task.
local function leave_to_other_apps(id, app)
    if redis.call("EXISTS", key.job(id)) == 0 then
        redis.call("ZREM", key.unreported, id) -- another client deleted the job
        return
    end
    local left, tries = unpack(redis.call("HMGET", key.job(id), "left", "tries"))
    redis.call("HSET", key.job(id), "left", left and left .. " " .. app or app)
    redis.call("ZADD", key.unreported, call.now, id)
    if tries and redis.call("HINCRBY", key.job(id), "tries", -1) == 0 then
        redis.call("HDEL", key.job(id), "tries") -- this attempt is not counted
    end
end

-- Discards an end that cannot be reported. The data under the id is kept, because it is possibly not a job. If a
-- batch's hash can be rebuilt, the callers get the error that their result is lost.
local function discard_end(id)
    if hooks.of(id).make_again(id) then
        redis.call("HSET", key.job(id), "state", "done", "ended", call.now)
        return
    end
    redis.call("ZREM", key.unreported, id)
end

function functions.ack_report(ARGV)
    local how = ARGV[1] -- "told"; "left": `app` does not define the tasks; "aside": the hashes cannot be read
    local app = ARGV[2] -- name of the app that leaves ends to other apps
    -- ARGV[3..]: job ids

    local unreported = 0
    local max_calls = math.max(1, math.floor(protocol.MOST_SHARED / math.max(1, #ARGV - 2))) -- calls per deleted batch
    for i = 3, #ARGV do
        local id = ARGV[i]
        local has_unreported_calls = how == "told" and hooks.of(id).has_callers(id)
        if redis.call("ZSCORE", key.unreported, id) and not has_unreported_calls then
            unreported = unreported + 1
            if how == "told" then
                requeue.mark_reported(id, max_calls)
            elseif how == "left" then
                leave_to_other_apps(id, app)
            else
                discard_end(id)
            end
        end
    end
    return unreported
end
