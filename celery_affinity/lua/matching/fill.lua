-- fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot. After a fill,
-- no pending job of `types` and free slot that fit each other exist side by side, unless the reply names some of the
-- types as `unfilled`: the caller passes these to `claim`. A job that has expired, and that no tick has seen yet, ends
-- when it would be claimed.
-- Cost: O(log n) in pending jobs, independent of workers; grows with `types`, once in a call.

-- A rule may change the heads of `waiting` between the two: it does its part with a job that has a key.
local function begin_rule(waiting)
    call.claiming = waiting
end
local function end_rule(waiting)
    call.claiming = false
    queue_heads.read_first_heads(waiting)
end

-- RETURNS the job of the tenant whose turn it is in the lane of `job` (`hooks.turn`), mostly `job` itself, and false.
-- If a reserve keeps back that job, RETURNS `job` and true: `job` goes out of turn. A reserve may let only `job` go,
-- since `job` is older, and a reserve yields to jobs that have waited for `reserve_patience`.
local function in_turn(waiting, job, view)
    local other, kept_back = hooks.turn(job), waiting.kept_back
    if other ~= job and kept_back
        and kept_back.open(other.type, other.lane .. " " .. other.enqueued .. " " .. other.id, view) == "" then
        return job, true
    end
    return other, false
end

-- RETURNS the types of which jobs are left, each with a blank behind it.
local function left_of(waiting)
    local left = ""
    for _, type in ipairs(waiting.types) do
        left = waiting.heads[type] and left .. type .. " " or left
    end
    return left
end

-- Fills slots. `waiting`: jobs, as `candidates` returns them. `caller`: the worker whose jobs go into the reply instead
-- of its inbox; "" for none. `view`: of the slots to fill. `fresh`: job id -> message, of jobs that were just written,
-- and then no other job is moved: whoever publishes may have no right to read messages.
-- RETURNS {unfilled, facts, message, ...}, and of a view of `lookahead` the jobs of these messages. unfilled: types,
-- separated by blanks, whose pending jobs this call did not get to, because a call moves MOST_MOVES jobs at most,
-- chooses from MOST_CHOSEN_FROM types, or moves only jobs that are fresh; "" for none.
function fill.from(waiting, caller, view, fresh)
    local reply, inline = { waiting.left, nil, nil }, view.is_ahead and {} -- with places for one job
    local bytes = 0

    for moves = 1, protocol.MOST_MOVES do
        local job, is_out_of_turn
        if view.left ~= 0 then
            job, is_out_of_turn = queue_heads.best(waiting)
        end
        if not job then
            break
        end
        local mark = string.sub(job.id, -1)
        local is_marked, is_ruled = hooks.is_mark[mark], protocol.MARKS_OF_KEYS[mark]
        if is_ruled and not is_out_of_turn then
            job, is_out_of_turn = in_turn(waiting, job, view)
        end
        local id, worker = job.id, view:best(job.type, job.id)
        local has_limit = waiting.limits[job.type]
        if view.is_ahead and (has_limit or (is_ruled and not hooks.may_be_ahead(id))) then
            break -- it would hold its key, or count, while it waits for a slot
        end
        local may_start = true
        if is_ruled then
            begin_rule(waiting)
            may_start = hooks.may_start(id, job.type, job.lane)
            end_rule(waiting)
        end
        if may_start and fresh and not fresh[id] then
            reply[1] = reply[1] .. left_of(waiting)
            break
        end
        local run, run_expires = id, nil -- of what stands for calls: the call that is run
        local fence, deliveries, expires, has_row, is_moved, preemptions, enqueued, requeues
        if may_start then
            may_start = queue_heads.pop(waiting, job, is_marked)
            local rule = may_start and is_marked and hooks.by_mark[id_suffix.of(id)]
            if rule then
                run, run_expires = rule.choose(id, job.type)
            end
        end
        if may_start and run then
            fence, deliveries, expires, has_row, is_moved, preemptions, enqueued, requeues =
                claims.grant(id, job.type, worker, view, worker == caller and call.sequence)
        end
        if is_ruled and may_start then
            begin_rule(waiting)
            if fence then
                hooks.hold(id, job.type, job.lane, fence, is_out_of_turn)
            else
                hooks.leave_gate(id, job.type, job.lane)
            end
            end_rule(waiting)
        end
        if fence then
            if not has_row then
                -- Somebody deleted the job's row. What its head says is enough to run it; of a batch, with its calls.
                local task, name, rules = unpack(redis.call("HMGET", key.job(run), "task", "name", "rules"))
                redis.call("HSET", key.job(id), "type", job.type, "lane", job.lane, "enqueued", job.enqueued,
                    "task", task or "", "name", name or "", rules and "rules" or "task", rules or "")
                corrupt.record("job " .. id .. ", of which only its place in a lane was left")
            end
            local message = fresh and fresh[id]
            local facts
            facts, message = claims.payload(id, fence, job.type, deliveries, enqueued or job.enqueued,
                run_expires or expires, message, run, is_moved and job.lane, preemptions, requeues)
            bytes = bytes + #facts + 1 + #message
            queue_heads.count(waiting, job)
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
        if moves == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
            reply[1] = reply[1] .. left_of(waiting)
            break
        end
    end
    queue_heads.write_heads(waiting)
    view:write()
    return reply, inline
end

-- Fills the slots of `view` with pending jobs of `types`, and of those that a rule let go on. RETURNS the reply of
-- `fill.from`, and the view of the slots that were filled: reserves need that of all slots.
function fill.fill(types, caller, settings, view)
    local left = ""
    if next(call.to_fill) then
        types, left = hooks.with_to_fill(types)
    end
    if #types == 0 then -- as in most heartbeats
        view:write()
        return { left }, view
    end
    local waiting = queue_heads.of(types, view, settings)
    local reply = fill.from(waiting, caller, waiting.view)
    if left ~= "" then
        reply[1] = reply[1] .. left
    end
    return reply, waiting.view
end
