-- results: server functions that hand the ends of jobs to the processes that report them to callers.

-- next_report: assigns an unreported end to a process, which reports it to the caller and then invokes `ack_report`.
-- Without an ack, any process can get the same end after a delay that doubles each time, because a reporter can hang.
--
-- Returns {id, how, type, task id, task name, deliveries, µs since the end, for anyone, message}, {id} if the job hash
-- is unreadable, or {} if no end must be reported.
--   how: "revoked", "expired", "dropped" or the dead-letter reason. For a batch also "shared": the run has ended, but
--     some calls have not received the result (`batch_calls`).
--   for anyone: 1 if an app that does not define the task should also report the end.
--   message: "" if it was deleted; nil if the process must fetch it because of its size.
-- Cost: at most MAX_ENDS_LOOKED_AT jobs, and a message of up to MAX_ANNOUNCED_BYTES bytes.

local function message_of(id)
    local length = redis.pcall("STRLEN", key.message(id))
    if type(length) ~= "number" then
        return "" -- another client overwrote the message
    end
    return length <= protocol.MAX_ANNOUNCED_BYTES and (redis.call("GET", key.message(id)) or "")
end

-- Returns the value of `how` in the reply.
local function outcome_of(id, state, reason, why)
    if state == "dead" and reason then
        return reason
    elseif state == "revoked" and string.find(why or "", protocol.DROPPED, 1, true) == 1 then
        return protocol.DROPPED
    end
    return hooks.of(id).STANDS_FOR_CALLS and "shared" or state
end

function functions.next_report(ARGV)
    local again_us = tonumber(ARGV[1]) -- the first delay
    local app = ARGV[2] -- the calling app; it gets ends that it left to other apps only if they are for anyone
    -- ARGV[3..]: ids of jobs whose ends the process has not finished reporting

    local is_reporting = {}
    for i = 3, #ARGV do
        is_reporting[ARGV[i]] = true
    end
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.unreported, "-inf", call.now, "LIMIT", 0,
        protocol.MAX_ENDS_LOOKED_AT)) do
        local fields = redis.pcall("HMGET", key.job(id),
            "state", "reason", "type", "task", "name", "deliveries", "ended", "left", "tries", "why")
        local state, reason, type, task, name, deliveries, ended, left, tries, why = unpack(fields)
        local is_id = corrupt.is_word(id)
        local ended_us = not fields.err and tonumber(ended)
        if not is_id then
            corrupt.remove(key.unreported, id)
        elseif not ended_us then
            redis.call("ZADD", key.unreported, call.text(call.now_us + again_us), id)
            return { id }
        end
        local age_us = math.max(0, call.now_us - (ended_us or 0))
        local attempts = tonumber(tries) or 0
        local is_for_anyone = age_us >= (attempts > 0 and protocol.OTHERS_WHO_TRY_HAVE_US or protocol.OTHERS_HAVE_US)
        if is_id and not is_reporting[id] and (is_for_anyone or not texts.has_word(left, app)) then
            local delay_us = math.min(again_us * 2 ^ attempts, protocol.MAX_PAUSE_US)
            redis.call("ZADD", key.unreported, call.text(call.now_us + delay_us), id)
            redis.call("HSET", key.job(id), "tries", attempts + 1)
            local how, for_anyone = outcome_of(id, state, reason, why), is_for_anyone and 1 or 0
            -- A merged call has no own deliveries: its batch was delivered.
            return { id, how, type, task, name, deliveries or "0", call.text(age_us), for_anyone, message_of(id) }
        end
    end
    return {}
end

-- ack_report: removes unreported ends after a process has reported them. A process can instead leave ends to other
-- apps, or discard unreadable ends.
--
-- Returns the number of the ends that were unreported. A batch with unreported calls stays unreported: see "shared" in
-- `next_report`.
-- Cost: at most MAX_MOVES jobs per invocation, limited by the caller, and MAX_SHARED calls of deleted batches.

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
    if hooks.of(id).rebuild(id) then
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
    local max_calls = math.max(1, math.floor(protocol.MAX_SHARED / math.max(1, #ARGV - 2))) -- calls per deleted batch
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

-- batch_calls: returns one page of the batch's calls that still need its result. The primary is excluded, because its
-- worker reports it.
--
-- Returns {after, published, id, task id, published, message, ...}, or {} if another process must report the batch.
--   after: argument for the next page, or -1 after the last page.
--   published: publish time in µs; a retry keeps the time of its first attempt. The first one is the primary's.
--   message: "" if it was deleted.
-- Cost: O(calls returned) and their bytes, at most some MB.
function functions.batch_calls(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim; "" for an unreported batch
    local after = ARGV[3] -- `after` of the previous page, or 0
    local max_calls = ARGV[4] -- maximum number of calls to read

    if not batches.may_report(batch, fence) then
        return {}
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    local page = redis.call(
        "ZRANGEBYSCORE", key.callers(batch), "(" .. after, "+inf", "WITHSCORES", "LIMIT", 0, max_calls)
    local next_cursor = #page == 2 * tonumber(max_calls) and tonumber(page[#page]) or -1
    local reply = { next_cursor, (batch_calls.published_us(primary or "")) }
    local bytes = 0
    for i = 1, #page, 2 do
        local id = page[i]
        if id ~= primary then
            local message = redis.call("GET", key.message(id)) or ""
            if message ~= "" or not batch_calls.is_missing(id, batch) then
                local published, task = batch_calls.published_us(id)
                reply[#reply + 1], reply[#reply + 2] = id, task
                reply[#reply + 1], reply[#reply + 2] = published, message
                bytes = bytes + #message
            end
        end
        if bytes > protocol.MAX_BYTES then
            reply[1] = tonumber(page[i + 1])
            break
        end
    end
    return reply
end

-- ack_batch_reports: ends the calls of a batch whose callers have received the result. The batch is claimed or
-- unreported. Calls of a dead batch are kept for a replay.
--
-- Returns the number of other calls that are unreported, or -1 if another process must report the batch.
-- Cost: O(calls given).
function functions.ack_batch_reports(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim; "" for an unreported batch
    local outcome = ARGV[3] -- "acked" or "failed", optionally followed by a space and the reason
    -- ARGV[4..]: ids of calls

    if not batches.may_report(batch, fence) then
        return -1
    end
    local how, why = ends.read_outcome(outcome)
    local batch_state, primary = unpack(redis.call("HMGET", key.job(batch), "state", "primary"))
    for i = 4, #ARGV do
        local id = ARGV[i]
        local number = id ~= primary and redis.call("ZSCORE", key.callers(batch), id)
        if number and batch_state == "dead" then
            redis.call("ZREM", key.callers(batch), id)
            redis.call("ZADD", key.reported_calls(batch), number, id)
        elseif number then
            batches.end_caller(id, batch, ends.STATE_AFTER[how], why)
        end
    end
    local unreported = redis.call("ZCARD", key.callers(batch))
    if fence ~= "" then
        return unreported - 1
    elseif unreported == 0 then
        requeue.mark_reported(batch)
    end
    return unreported
end

-- split_batch: claimed -> pending, for calls of a batch that its run cannot take. The calls form a new batch in the
-- same order. Its enqueue time is the oldest of the calls; its lane is the most urgent one, or the lane to which the
-- batch was moved. It has no merge window; other calls can join if no other batch is open. If the old batch paused,
-- other calls cannot join, and the new batch keeps the position in the lane. The primary stays, because the worker has
-- its message. Ended calls stay, too.
--
-- Returns {calls, unfilled}. calls: number of moved calls, or -1 if the caller does not hold the batch. unfilled: see
-- `fill`.
-- Cost: O(calls given), about 5 µs per call, plus the cost of `fill`.

-- Moves calls from `batch` into the new batch `part`. Returns the lane, the enqueue time, the message bytes, and the
-- fields `head` and `due` of `part`.
local function move_calls(ids, batch, part)
    local lane, enqueued, bytes, rank, due = nil, nil, 0, nil, nil
    for number, id in ipairs(ids) do
        local call_lane, call_enqueued, call_head, call_due =
            unpack(redis.call("HMGET", key.job(id), "lane", "enqueued", "head", "due"))
        redis.call("ZREM", key.callers(batch), id)
        redis.call("ZADD", key.callers(part), number, id)
        redis.call("HSET", key.job(id), "into", part)
        if lanes.is_lane(call_lane) then
            lane = merge.better_lane(lane or call_lane, call_lane)
        end
        local enqueued_us = tonumber(call_enqueued) or call.now_us
        enqueued = math.min(enqueued or math.huge, enqueued_us)
        rank = math.min(rank or math.huge, tonumber(lanes.order(call.text(enqueued_us), nil, call_head)))
        due = merge.earlier_due(due, call_due)
        bytes = bytes + redis.call("STRLEN", key.message(id))
    end
    return lane or "queued.0", call.text(enqueued), bytes, merge.common_head(enqueued, rank, rank), due
end

function functions.split_batch(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim
    -- ARGV[3..]: ids of calls

    if fence == "" or not batches.may_report(batch, fence) then
        return { -1, "" }
    end
    local type, name, rules, is_moved, batch_lane, primary, rank =
        unpack(redis.call("HMGET", key.job(batch), "type", "name", "rules", "moved", "lane", "primary", "rank"))
    local ids, seen, part = {}, {}, nil -- calls to move; the first unused id of a batch that one of them can begin
    for i = 3, #ARGV do
        local id = ARGV[i]
        if not seen[id] and id ~= primary and redis.call("ZSCORE", key.callers(batch), id) then
            ids[#ids + 1], seen[id] = id, true
            if not part and redis.call("EXISTS", key.job(id_suffix.batch_of(id))) == 0 then
                part = id_suffix.batch_of(id)
            end
        end
    end
    if not part then
        return { #ids > 0 and -1 or 0, "" }
    end
    local lane, enqueued, bytes, head, due = move_calls(ids, batch, part)
    redis.pcall("HINCRBY", key.job(batch), "size", -#ids)
    if is_moved and lanes.is_lane(batch_lane) then
        lane = batch_lane
        redis.call("HSET", key.job(part), "moved", 1, "claimed", "") -- see `claims.grant`
    end
    merge.write_batch(part, type, lane, enqueued, name, rules, #ids, "state", "pending", "bytes", call.text(bytes))
    merge.write_due_time(part, head, due)
    if rank then
        redis.call("HSET", key.job(part), "rank", rank, "claimed", "") -- see `claims.grant`
    else
        merge.open_unless_open(part, type, rules, name)
    end
    hooks.wait(part, type, lane, lanes.order(enqueued, rank, head))
    return { #ids, fill.anywhere({ type }) }
end
