-- claim: pending -> inbox. Moves the best pending jobs to the most specialised free slots. Other server functions end
-- with the same step (`fill`). A claim continues with the types that another invocation returned as `unfilled`.
--
-- Returns {unfilled}. unfilled: types, separated by spaces, whose pending jobs were not processed, because one
-- invocation moves at most MAX_MOVES jobs. The caller passes them to `claim`.
-- Cost: the cost of `fill`.
function functions.claim(ARGV)
    -- ARGV[1..]: types, encoded

    return { fill.anywhere(ARGV) }
end

-- ack: inbox -> acked. An acked job will not run again. Its slot stays occupied until the job's release. Its message
-- also stays until then: if the worker dies, the message identifies the caller that gets the result.
--
-- Returns the number of acked jobs. A stale fencing token changes nothing.
-- Cost: O(jobs).
function functions.ack(ARGV)
    local worker = ARGV[1]
    -- ARGV[2..]: job id, fencing token, ...
    local acked = 0
    for i = 2, #ARGV, 2 do
        local id = ARGV[i]
        if claims.held(worker, id, ARGV[i + 1]) then
            redis.call("HSET", key.job(id), "acked", 1)
            acked = acked + 1
        end
    end
    return acked
end

-- release: claimed -> ended, which frees a slot. The reply contains the next job for the slot, which saves an
-- invocation. Jobs that are pending again, by outcome:
--   "unsettled" (neither acked nor rejected): counts a delivery.
--   "aborted": counts a delivery; the job pauses first.
--   "requeued" (by its task): counts a requeue; the job pauses first.
--   "returned" (not started), "preempted" (stopped for another tenant): counts nothing.
-- A repeated invocation gets the jobs of the first reply again.
--
-- Returns {unfilled, facts, message, ...}. unfilled: see `fill`. Facts and messages belong to the worker's next jobs,
-- if it gets them inline.
-- Cost: O(log n) in pending jobs; grows with the lanes of the worker's types.
local MINUS = 45 -- the byte of "-"

-- Returns the jobs that `worker` still holds from the reply to the first invocation with this `sequence`. Field `by`
-- of such a job has the sequence number.
local function replied_jobs(worker, sequence)
    local fences, ids = {}, {}
    for _, id in ipairs(redis.call("HKEYS", key.claims(worker))) do
        local by, fence = unpack(redis.call("HMGET", key.job(id), "by", "fence"))
        if by == sequence then
            ids[#ids + 1], fences[id] = id, tonumber(fence) or 0
        end
    end
    table.sort(ids, function(one, other) return fences[one] < fences[other] end)
    local jobs = {}
    for _, id in ipairs(ids) do
        local facts, message = claims.payload_again(id)
        if facts then
            jobs[#jobs + 1], jobs[#jobs + 2] = facts, message
        end
    end
    return jobs
end

-- Returns true if a job with this outcome can wait again. Its claim is then removed after all other writes.
local function may_wait_again(outcome)
    return not ends.STATE_AFTER[string.match(outcome, "^%S*")]
end

-- Ends a job whose outcome is not plain "acked".
--   fence: fencing token of its claim.
--   known: returned by `claims.remove`.
--   keeps: field of the worker's hash about retained ended jobs.
-- Returns the type of a job that is pending again, or nil.
local function end_otherwise(worker, id, fence, known, outcome, keeps, settings)
    local how, why = ends.read_outcome(outcome)
    local cause
    if how == protocol.PREEMPTED then
        how, why = hooks.stopped(worker, id, fence, known, why)
        cause = how == "returned" and protocol.PREEMPTED or nil
    end
    -- The worker has lost a job that it acked, or the task raised Ignore.
    known.is_doubtful = how ~= "acked"
    local is_kept = how == "failed" and keeps and string.find(keeps, "failed", 1, true)
    local has_ended = (ends.STATE_AFTER[how] or known.acked) and not is_kept
    if has_ended then
        local type = hooks.of(id).release(id, known, how, why)
        if may_wait_again(outcome) then
            redis.call("HDEL", key.claims(worker), id)
        end
        return type
    elseif how == "rejected" or is_kept then
        requeue.reject(worker, id, how, settings, why)
        return nil
    end
    return requeue.requeue(worker, id, how, settings, why, cause)
end

-- Ends the jobs in `ends_given`, from the fifth value. Returns the set of types whose jobs are pending again.
local function end_all(worker, ends_given, keeps, settings)
    local requeued_types = {}
    for i = 5, #ends_given, 3 do
        local id, fence, outcome = ends_given[i], ends_given[i + 1], ends_given[i + 2]
        local known = claims.remove(worker, id, fence, outcome ~= "acked" and may_wait_again(outcome))
        if known and keeps then
            known.keep_s = tonumber(string.match(keeps, "^%d+"))
        end
        if known and outcome == "acked" and known.rules then
            hooks.has_succeeded(worker, id, known)
        end
        if known and outcome == "acked" and not (known.is_marked and hooks.by_mark[id_suffix.of(id)]) then -- usual
            ends.on_worker(id, known, "done", "")
        elseif known then
            local type = end_otherwise(worker, id, fence, known, outcome, keeps, settings)
            if type then
                requeued_types[type] = true
            end
        end
    end
    return requeued_types
end

-- Returns true if jobs may fit slots other than the slots just freed: requeued jobs, or jobs that a rule has admitted.
local function fits_others(any_requeued_type)
    if any_requeued_type then
        return true
    elseif not next(call.to_fill) then
        return false
    end
    for _, type in ipairs(hooks.types_to_fill()) do
        if free_slots.free_for(type) > 0 then
            return true
        end
    end
    call.to_fill = {}
    return false
end

function functions.release(ARGV)
    local worker = ARGV[1]
    local sequence = ARGV[2] -- sequence number of the invocation; "-" before it: the invocation is repeated
    local caller = ARGV[3] == "1" and worker or "" -- the worker that gets jobs inline
    local may_hold = ARGV[4] -- jobs it may hold beyond its slots (`prefetch`); "0" for none
    -- ARGV[5..]: job id, fencing token, outcome, ... The outcome is "acked", "ignored", "failed", "revoked", "expired",
    -- "rejected", "unsettled", "aborted", "requeued", "returned" or "preempted", optionally followed by a space and the
    -- reason.
    local earlier_jobs
    if string.byte(sequence) == MINUS then
        sequence = string.sub(sequence, 2)
        earlier_jobs = replied_jobs(worker, sequence)
    end
    local row, served, keeps, free = free_slots.terms(worker)
    if caller ~= "" then
        call.sequence = sequence
    end
    local settings = settings_in_force.read()
    local requeued_types = end_all(worker, ARGV, keeps, settings)
    local any_requeued_type = next(requeued_types)
    local fits_other_slots = fits_others(any_requeued_type) -- before the worker's own slots are free
    if row[free_slots.STALLED] and caller ~= "" then
        workers.resume(worker) -- only a running event loop gets jobs inline
        free_slots.recount(worker)
        row, free = free_slots.row(worker), nil
    end
    local types = served
    if any_requeued_type then
        types = { unpack(served) }
        for type in pairs(requeued_types) do
            types[#types + 1] = type
        end
    end
    local view = free_slots.own(worker, row, free)
    if fits_other_slots then
        view = view:of_all()
    end
    local reply
    reply, view = fill.fill(types, caller, settings, view)
    local slots_left = view.left or tonumber(redis.call("HGET", key.worker(worker), "free") or 0)
    if any_requeued_type then
        prefetch.note_return(worker, requeued_types)
    end
    if reply[1] == "" then
        if may_hold ~= "0" and caller ~= "" and slots_left == 0 then
            prefetch.fill(worker, row, served, may_hold, settings, reply)
        end
        prefetch.request_jobs(worker, served, slots_left)
    end
    for i = 1, earlier_jobs and #earlier_jobs or 0 do
        table.insert(reply, i + 1, earlier_jobs[i])
    end
    return reply
end

-- requeue: claimed -> pending. Returns jobs to their positions in their lanes, which frees their slots.
--
-- Returns {unfilled, returned}. unfilled: see `fill`. returned: number of jobs that are pending again. A stale fencing
-- token changes nothing.
-- Cost: O(jobs * log n), plus the cost of `fill`.
function functions.requeue(ARGV)
    local worker = ARGV[1]
    local counted = ARGV[2] == "1" -- true if a delivery is counted, false for a drain
    -- ARGV[3..]: job id, fencing token, ...

    local how = counted and "unsettled" or "returned"
    local settings = settings_in_force.read()
    local types = workers.types_of(worker)
    local served = #types
    for i = 3, #ARGV, 2 do
        if claims.held(worker, ARGV[i], ARGV[i + 1]) then
            types[#types + 1] = requeue.requeue(worker, ARGV[i], how, settings)
        end
    end
    local returned = #types - served
    free_slots.recount(worker)
    return { fill.anywhere(types, settings), returned }
end
