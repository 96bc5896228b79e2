-- release: claimed -> ended, and a slot is free again. The reply carries the next job for the slot, which so costs no
-- call of its own. A job that ends unsettled, neither acked nor rejected, is pending again, and counts one more
-- delivery; so does a job whose run was aborted, after a pause. A job that its task requeued counts one more requeue,
-- and has a pause, too. A job that the worker returns without having started it, or that it stopped for another tenant,
-- is pending again, and counts none. A call that is repeated gets the jobs of the first reply once more.
-- RETURNS {unfilled, facts, message, ...}; unfilled: as `fill` returns it. Facts and messages are those of the worker's
-- next jobs, if it gets them inline.
-- Cost: O(log n) in pending jobs; grows with the lanes of the types that the worker serves.
local MINUS = 45 -- the byte of "-"

-- RETURNS what the reply to a call that is repeated carried, of the jobs that `worker` still holds: such a job says in
-- field `by` which call gave it away.
local function carried(worker, sequence)
    local fences, ids = {}, {}
    for _, id in ipairs(redis.call("HKEYS", key.claims(worker))) do
        local by, fence = unpack(redis.call("HMGET", key.job(id), "by", "fence"))
        if by == sequence then
            ids[#ids + 1], fences[id] = id, tonumber(fence) or 0
        end
    end
    table.sort(ids, function(one, other) return fences[one] < fences[other] end)
    local parts = {}
    for _, id in ipairs(ids) do
        local facts, message = claims.payload_again(id)
        if facts then
            parts[#parts + 1], parts[#parts + 2] = facts, message
        end
    end
    return parts
end

-- Ends a job that is not just done; `fence`: number of its claim; `known`: what `claims.remove` returned; `keeps`: what
-- the worker's row says of ended jobs. RETURNS the type of a job that is pending again, else nil.
local function end_otherwise(worker, id, fence, known, outcome, keeps, settings)
    local how, why = ends.read_outcome(outcome)
    if how == protocol.PREEMPTED then
        how, why = hooks.stopped(worker, id, fence, known, why)
    end
    -- The worker had acked it, and lost it; or the task says that it was ignored.
    known.is_doubtful = how ~= "acked"
    local is_kept = how == "failed" and keeps and string.find(keeps, "failed", 1, true)
    local has_ended = (ends.STATE_AFTER[how] or known.acked) and not is_kept
    if has_ended then
        return hooks.of(id).release(id, known, how, why)
    elseif how == "rejected" or is_kept then
        requeue.remove_claim(worker, id)
        requeue.dead_letter(id, how, settings, why)
        return nil
    end
    return requeue.requeue(worker, id, how, settings, why)
end

-- Ends the jobs in `ends_given`, from the fifth value on. RETURNS a table of the types of those that are pending again.
local function end_all(worker, ends_given, keeps, settings)
    local again = {}
    for i = 5, #ends_given, 3 do
        local id, fence, outcome = ends_given[i], ends_given[i + 1], ends_given[i + 2]
        local known = claims.remove(worker, id, fence)
        if known and keeps then
            known.keep_s = tonumber(string.match(keeps, "^%d+"))
        end
        if known and outcome == "acked" and known.rules then
            hooks.ended_well(worker, id, known)
        end
        if known and outcome == "acked" and not (known.is_marked and hooks.by_mark[id_suffix.of(id)]) then -- as most end
            ends.on_worker(id, known, "done", "")
        elseif known then
            local type = end_otherwise(worker, id, fence, known, outcome, keeps, settings)
            if type then
                again[type] = true
            end
        end
    end
    return again
end

-- RETURNS whether jobs may wait for other slots than the one that is free now: those that came back, or that a rule has
-- let go on.
local function fits_others(again)
    if next(again) then
        return true
    elseif not next(call.to_fill) then
        return false
    end
    for _, type in ipairs(hooks.to_fill()) do
        if free_slots.free_for(type) > 0 then
            return true
        end
    end
    call.to_fill = {}
    return false
end

function functions.release(ARGV)
    local worker = ARGV[1]
    local sequence = ARGV[2] -- the number of the call; "-" before it: the call is repeated
    local caller = ARGV[3] == "1" and worker or "" -- the worker that gets jobs inline
    local may_hold = ARGV[4] -- what it may hold beyond its slots (`lookahead`); "0" for nothing
    -- ARGV[5..]: job id, fencing number, outcome of each: "acked", "ignored", "failed", "revoked", "expired",
    -- "rejected", "unsettled", "aborted", "requeued", "returned" or "preempted"; after a blank why may follow, in words
    local before
    if string.byte(sequence) == MINUS then
        sequence = string.sub(sequence, 2)
        before = carried(worker, sequence)
    end
    local row, served, keeps, free = free_slots.terms(worker)
    if caller ~= "" then
        call.sequence = sequence
    end
    local settings = settings_in_force.read()
    local again = end_all(worker, ARGV, keeps, settings)
    local fits = fits_others(again) -- before the worker's own slots are free
    if row[free_slots.STALLED] and caller ~= "" then
        workers.resume(worker) -- only the event loop gets jobs inline: it runs again
        free_slots.recount(worker)
        row, free = free_slots.row(worker), nil
    end
    local types = served
    if next(again) then
        types = { unpack(served) }
        for type in pairs(again) do
            types[#types + 1] = type
        end
    end
    local view = free_slots.own(worker, row, free)
    if fits then
        view = view:of_all()
    end
    local reply
    reply, view = fill.fill(types, caller, settings, view)
    local left = view.left or tonumber(redis.call("HGET", key.worker(worker), "free") or 0)
    if next(again) then
        prefetch.gave_back(worker, again)
    end
    if reply[1] == "" then
        if may_hold ~= "0" and caller ~= "" and left == 0 then
            prefetch.fill(worker, row, served, may_hold, settings, reply)
        end
        prefetch.ask(worker, served, left)
    end
    for i = 1, before and #before or 0 do
        table.insert(reply, i + 1, before[i])
    end
    return reply
end
