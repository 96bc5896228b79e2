-- projections: the entries of other keys that follow from the hash of a job, its place in its lane, and its claim. They
-- are compared with the actual entries, and a member of a sorted set of jobs that does not follow is removed. The lane
-- itself does not follow from the hash: a job whose hash is lost is dead-lettered from there.

-- Returns the number of keys that admit the waiting `job`. These are all keys if it is in its lane, otherwise the keys
-- before the last sub-lane that it waits in.
local function number_admitted(id, job)
    for nth = job.in_lane and 0 or #job.keys, 2, -1 do
        if rebuild.score(key.key_queue(job.keys[nth].key, job.type, job.lane), id) then
            return nth - 1
        end
    end
    return job.in_lane and #job.keys or 0
end

-- Returns the fields of job `id` as a table, or nil if its hash is missing.
--   keys: its keys.
--   waits: true if it waits in a lane or for a key. Only then it has these:
--   order: the time that orders it in its lane.
--   in_lane: its score in its lane, or false.
--   admitted: number of keys that admit it.
function projections.read(id)
    local rules, state, type, lane, enqueued, name, worker, rank, head, due, is_limited = rebuild.fields(key.job(id),
        "rules", "state", "type", "lane", "enqueued", "name", "worker", "rank", "head", "due", "limited")
    if state == nil then
        return nil
    end
    local job = {
        keys = id_suffix.has_key(id) and rules_codec.keys(rules) or {},
        hint = id_suffix.has_hint(id) and rules_codec.hint(rules or nil), state = state, type = type,
        lane = lanes.is_lane(lane) and lane, task = "=" .. (name or ""), worker = worker or "", due = due,
        is_limited = is_limited,
    }
    job.waits = state == "pending" and type and job.lane and rebuild.integer(enqueued)
    if job.waits then
        job.order, job.in_lane = lanes.order(enqueued, rank, head), rebuild.score(key.lane(type, lane), id)
        job.admitted = number_admitted(id, job)
    end
    return job
end

-- Returns the expected heads if they must contain a head of `lane`. A later stage of the repair checks which.
local function with_head(id, lane, time)
    return function(heads)
        local head = lane .. " " .. time .. " " .. id
        return lanes.place(heads or "", lane) and heads or heads and heads .. " " .. head or head
    end
end

-- Calls `expect` with the entries of a waiting job: kind of the key, key, member, expected value (`rebuild.entry`).
local function of_waiting(id, job, expect)
    local type, lane, order = job.type, job.lane, job.order
    local field, is_blocked = type .. " " .. lane, job.admitted < #job.keys
    if job.hint then
        expect("zset", key.hint_lane(job.hint, type, lane), id, job.in_lane)
        if job.in_lane then
            expect("hash", key.hint_heads, locality.field_of(job.hint, type), with_head(id, lane, job.in_lane))
        end
    end
    if job.keys[1] then
        expect("zset", key.kept_back(type, lane), id, is_blocked and order)
        expect("hash", key.kept_lanes, field, rebuild.actual_or(is_blocked and "1"))
    end
    for nth, stated in ipairs(job.keys) do
        local its_key, job_key, waits = key.key_state(stated.key), stated.key, nth <= job.admitted + 1
        expect("zset", key.key_queue(job_key, type, lane), id, waits and order)
        if key_state.is_stated(stated) then
            expect("hash", its_key, job.task, rebuild.actual_or(stated.states))
            if nth > 1 then
                expect("zset", key.second_key_jobs(job_key), id, order)
                expect("hash", its_key, "coming", "1")
            end
        end
        if waits then
            local standing = nth <= job.admitted and id
            expect("zset", key.waiting_keys, job_key, rebuild.actual_or(gate.revision()))
            expect("hash", its_key, field, repair_keyed.sublane_field(job_key, type, lane, standing))
        end
        local sublane = key_state.sublane_of(type, lane, rebuild.fields(its_key, field))
        if sublane.is_first and sublane.standing == id then
            expect("zset", key.minimum_lane(type, lane), id, order)
            expect("hash", key.minimum_heads, type, with_head(id, lane, order))
        end
    end
end

-- Calls `expect` with the entries of a claimed job.
local function of_claimed(id, job, expect)
    local fence = rebuild.integer(rebuild.fields(key.claims(job.worker), id))
    if job.is_limited and job.type and job.lane then
        expect("zset", key.type_running(job.type), id, lanes.number(job.lane))
    end
    for _, stated in ipairs(job.keys) do
        if not string.find(stated.states, "/", 1, true) then -- a rate has no holders
            if fence and key_state.is_stated(stated) then
                expect("hash", key.key_state(stated.key), job.task, rebuild.actual_or(stated.states))
            end
            expect("zset", key.held(stated.key), id, fence)
        end
        if stated.is_preemptible then
            expect("zset", key.preemptible(stated.key), id, fence)
            expect("zset", key.preemptible_tenants, stated.key, evictions.number_of(stated.key))
        end
    end
end

-- Compares the entries that follow from the hash of job `id`.
--   found_in: a sorted set with the job, or nil. The job is removed there if no entry of this set follows.
-- Returns true if anything differed, and the result of `projections.read`.
function projections.fix(id, found_in)
    local job, differs, belongs = projections.read(id), false, not found_in
    local function expect(kind, name, member, expected)
        differs, belongs = rebuild.compare(kind, name, member, expected) or differs, belongs or name == found_in
    end
    if job and job.due then
        local can_start = job.state == "pending" or job.state == "scheduled"
        expect("zset", key.due_times, id, can_start and due_times.in_field(job.due))
    end
    if job and job.waits then
        of_waiting(id, job, expect)
    elseif job and job.state == "claimed" then
        of_claimed(id, job, expect)
    end
    if not belongs then
        expect("zset", found_in, id, nil)
    end
    for _, stated in ipairs(differs and job and job.keys or {}) do
        repair_keyed.reevaluate_later(stated.key)
    end
    return differs, job
end

-- Fixes some jobs of a sorted set.
function projections.fix_some(name)
    rebuild.fix_sample(name, function(id)
        return (projections.fix(id, name))
    end)
end
