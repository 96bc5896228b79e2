-- move: changes the type, mode or priority of waiting jobs for an operator. The jobs keep their enqueue times. The
-- worker that claims a job receives the change with it (`claims.payload`), so that a retry keeps the change.
--
-- Returns {unfilled, served, found, calls, ...}, with found and calls for each job.
--   unfilled: see `fill`.
--   served: 0 if no live worker serves the new type.
--   found: state of the job, or of the batch that it was merged into. A pending or scheduled job has been moved. "" for
--     an unknown job.
--   calls: number of calls in the batch; 1 for a job.
-- Cost: O(log n) per job, at most MOST_MOVES jobs per invocation, limited by the caller, plus the cost of `fill`.

function functions.move(ARGV)
    local new_type = ARGV[1] -- encoded; "" keeps the type
    local new_mode = ARGV[2] -- "queued" or "demand"; "" keeps the mode
    local new_priority = ARGV[3] -- 0 to 10; "" keeps the priority
    -- ARGV[4..]: job ids

    -- Returns the new lane of a job from `lane`.
    local function new_lane_for(lane)
        local mode, priority = string.match(lane, "^(%l+)%.(%d+)$")
        return lanes.name(new_mode ~= "" and new_mode or mode, new_priority ~= "" and new_priority or priority)
    end

    -- Moves job `id` if it waits. Returns its state, and the type if the job is pending.
    local function move(id)
        local state, type, lane, enqueued, deliveries, patient, rules, name, rank = unpack(redis.call("HMGET",
            key.job(id), "state", "type", "lane", "enqueued", "deliveries", "patient", "rules", "name", "rank"))
        if state ~= "pending" and state ~= "scheduled" then
            return state
        elseif not (corrupt.is_word(id) and corrupt.can_wait(type, lane, enqueued, deliveries)) then
            return nil
        end
        local its_type, its_lane = new_type ~= "" and new_type or type, new_lane_for(lane)
        if its_type == type and its_lane == lane then
            return state
        end
        if state == "pending" then
            hooks.leave(id, type, lane)
        end
        redis.call("HSET", key.job(id), "type", its_type, "lane", its_lane, "moved", 1)
        redis.call("HSETNX", key.job(id), "claimed", "") -- see `claims.grant`
        if state == "pending" then
            hooks.wait(id, its_type, its_lane, lanes.order(enqueued, rank))
        end
        local row = { state = state, type = type, rules = rules, name = name, patient = patient }
        hooks.of(id).is_moved(id, row, its_type, its_lane)
        return state, state == "pending" and its_type or nil
    end

    local types, found = {}, {}
    for i = 4, #ARGV do
        local state, into = unpack(redis.call("HMGET", key.job(ARGV[i]), "state", "into"))
        local id = state == "merged" and hooks.of(ARGV[i]).representative(ARGV[i], into) or ARGV[i]
        local run_state, type = move(id)
        types[#types + 1] = type
        found[#found + 1] = run_state or ""
        found[#found + 1] = hooks.of(id).number_of_calls(id)
    end
    local is_served = new_type == "" or redis.call("HEXISTS", key.capacity, new_type) == 1
        or redis.call("HEXISTS", key.capacity, protocol.WITHDRAWN .. new_type) == 1
    local unfilled = fill.fill(types, "", settings_in_force.read(), slot_choice.view())[1]
    return { unfilled, is_served and 1 or 0, unpack(found) }
end
