-- fill: moves pending jobs to inboxes. It is the only place that assigns jobs to slots: the best job first, then its
-- best slot. After a fill, no pending job of `types` fits a free slot, unless the reply lists types as `unfilled`. The
-- caller passes these types to `claim`. An expired job that no tick has seen yet ends when it would be claimed.
--
-- Cost: O(log n) in pending jobs, independent of workers; grows with `types`, once per invocation.

-- The hooks of a job with keys run between these two calls, and can change the heads of `waiting`.
local function begin_hook(waiting)
    call.claiming = waiting
end
local function end_hook(waiting)
    call.claiming = false
    queue_heads.read_first_heads(waiting)
end

-- Returns the types with remaining jobs, each followed by a space.
local function unfilled_types(waiting)
    local unfilled = ""
    for _, type in ipairs(waiting.types) do
        unfilled = waiting.heads[type] and unfilled .. type .. " " or unfilled
    end
    return unfilled
end

-- Fills slots.
--   waiting: candidates, as `queue_heads.of` returns them.
--   caller: the worker that gets its jobs in the reply instead of its inbox, or "".
--   view: the view of the slots to fill.
--   fresh: job id -> message of the jobs just written, or nil. Only these jobs are then assigned, since a publisher may
--     not be permitted to read messages.
-- Returns {unfilled, facts, message, ...}, and for a look-ahead view (`prefetch`) the jobs of these messages.
--   unfilled: types with pending jobs that this invocation did not reach, separated by spaces, or "". One invocation
--     assigns up to MAX_MOVES jobs of up to MAX_CHOSEN_FROM types, or only fresh jobs. With thousands of heads it stops
--     earlier (MAX_COMPARED_BYTES, MAX_CHOICES).
function fill.from(waiting, caller, view, fresh)
    local reply, inline = { waiting.left, nil, nil }, view.is_ahead and {} -- preallocated for one job
    local bytes, has_shares = 0, waiting.shares

    for moves = 1, protocol.MAX_MOVES do
        local job, is_out_of_turn
        if view.left ~= 0 then
            job, is_out_of_turn = queue_heads.best(waiting)
        end
        if not job then
            if view.left ~= 0 and waiting.settings and waiting.bytes < 0 then
                reply[1] = reply[1] .. unfilled_types(waiting)
            end
            break
        end
        local turn
        if has_shares and not is_out_of_turn then
            job, turn = hooks.turn(waiting, job, view)
        end
        local suffix = string.sub(job.id, -1)
        local has_suffix = hooks.is_mark[suffix]
        local has_keys = has_suffix and protocol.MARKS_OF_KEYS[suffix]
        local id, worker = job.id, view:best(job)
        local has_limit = waiting.limits[job.type]
        if view.is_ahead and (has_limit or has_shares or (has_keys and not hooks.may_be_ahead(id))) then
            break -- while it waits for a slot, the job would hold its key, count for the limit, or be charged
        end
        local may_start = true
        if has_keys then
            begin_hook(waiting)
            may_start = hooks.may_start(id, job.type, job.lane)
            end_hook(waiting)
            if has_shares and not may_start then
                hooks.forget_candidate(job) -- if another client added it, it is not in the lane that it left
            end
        end
        if may_start and fresh and not fresh[id] then
            reply[1] = reply[1] .. unfilled_types(waiting)
            break
        end
        local run, run_expires = id, nil -- for a batch: the call to run
        local fence, deliveries, expires, has_hash, is_moved, preemptions, enqueued, requeues, due
        if may_start then
            may_start = queue_heads.pop(waiting, job, has_suffix or has_shares)
            local rule = may_start and has_suffix and hooks.by_mark[id_suffix.of(id)]
            if rule then
                run, run_expires = rule.choose(id, job.type)
            end
        end
        if may_start and run then
            fence, deliveries, expires, has_hash, is_moved, preemptions, enqueued, requeues, due =
                claims.grant(id, job.type, worker, view, worker == caller and call.sequence)
        end
        if has_shares and may_start then
            hooks.charge(id, job.type, job.lane, fence and worker, turn)
        end
        if has_keys and may_start then
            begin_hook(waiting)
            if fence then
                hooks.hold(id, job.type, job.lane, fence)
            else
                hooks.leave_gate(id, job.type, job.lane)
            end
            end_hook(waiting)
        end
        if fence then
            if not has_hash then
                -- Another client deleted the job hash. The head has enough data to run the job, or the batch.
                local task, name, rules = unpack(redis.call("HMGET", key.job(run), "task", "name", "rules"))
                redis.call("HSET", key.job(id), "type", job.type, "lane", job.lane, "enqueued", job.enqueued,
                    "task", task or "", "name", name or "", rules and "rules" or "task", rules or "")
                corrupt.record("job " .. id .. ", of which only its place in a lane was left")
            end
            local message = fresh and fresh[id]
            local facts
            facts, message = claims.payload(id, fence, job.type, deliveries, enqueued or job.enqueued,
                run_expires or expires, message, run, is_moved and job.lane, preemptions, requeues, due)
            bytes = bytes + #facts + 1 + #message
            if has_limit or waiting.kept_back then
                queue_heads.count(waiting, job)
            end
            if worker == caller then
                reply[#reply + 1], reply[#reply + 2] = facts, message
                if inline then
                    inline[#inline + 1] = job
                end
            else
                claims.put_into_inbox(worker, facts, message)
            end
        elseif fence == nil and may_start and run == id then
            ends.record(id, "expired")
        end
        if moves == protocol.MAX_MOVES or bytes > protocol.MAX_BYTES
            or moves * #waiting.types > protocol.MAX_CHOICES then
            reply[1] = reply[1] .. unfilled_types(waiting)
            break
        end
    end
    queue_heads.write_heads(waiting)
    view:write()
    return reply, inline
end

-- Fills all free slots with pending jobs, like `fill.fill`. Returns the unfilled types.
function fill.anywhere(types, settings)
    return fill.fill(types, "", settings or settings_in_force.read(), slot_choice.view())[1]
end

-- Fills the slots of `view` with pending jobs of `types` and of the types that admitted jobs entered. Returns the reply
-- of `fill.from` and the view of the filled slots: with reserves, it is the view of all slots.
function fill.fill(types, caller, settings, view)
    local unfilled = ""
    if next(call.to_fill) then
        types, unfilled = hooks.add_types_to_fill(types)
    end
    if #types == 0 then -- the usual case in heartbeats
        view:write()
        return { unfilled }, view
    end
    local waiting = queue_heads.of(types, view, settings)
    local reply = fill.from(waiting, caller, waiting.view)
    if unfilled ~= "" then
        reply[1] = reply[1] .. unfilled
    end
    return reply, waiting.view
end
