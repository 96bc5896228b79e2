-- worker: server functions for the life of a worker: it joins, reports, and leaves or is lost.

-- join: registers a worker with its types and slots. A worker that joins again can change both, and keeps its claims.
--
-- Returns {unfilled, namesake, {replaced setting, ...}, void, now}.
--   unfilled: see `fill`.
--   namesake: a live worker with the same node name, or "".
--   replaced: settings whose values, set by another app or another version of this one, were replaced.
--   void: claims with this fencing token or a lower one no longer belong to the worker, even if it reads them later. 0
--     if the worker keeps its claims.
--   now: server time in µs, for jobs that expire while they wait in the worker.
-- Cost: the cost of `fill`, and O(types).
function functions.join(ARGV)
    idle_libraries.collect_in_steps()
    local worker = ARGV[1] -- one id per run of a worker process
    local name = ARGV[2] -- node name, encoded
    local slots_in_all = ARGV[3]
    local other = ARGV[4] -- slots occupied by requests without a claim, minus the slots that claims lend
    local profile = ARGV[5] -- one id per set of types
    local types = workers.split(ARGV[6]) -- encoded and separated by spaces
    local app = ARGV[7] -- encoded
    local stops = ARGV[8] -- "force", or the tasks that it can stop, encoded and separated by spaces, or ""
    local priority = ARGV[9] -- an integer, compared between equally specialised workers (`placement`)
    -- ARGV[10..]: name, value, ...: settings in its app.conf

    redis.call("SET", key.schema, protocol.SCHEMA, "NX") -- for a server that was flushed while workers ran
    local replaced = {}
    local accepting = redis.call("HGET", key.worker(worker), "accepting")
    local void = accepting == "1" and 0 or tonumber(redis.call("GET", key.fence)) or 0
    if accepting then
        workers.detach(worker)
    else
        -- Only a new worker's settings are adopted. Otherwise workers of an old app version would undo the settings of
        -- a new version.
        replaced = settings_in_force.adopt(app, ARGV, 10)
    end
    settings_in_force.keep(app)
    local namesake = redis.call("HGET", key.names, name)
    redis.call("HSET", key.names, name, worker)
    redis.call("HSET", key.worker(worker), "name", name, "profile", profile, "slots", slots_in_all, "other", other,
        "app", app)
    if stops ~= "" then
        redis.call("HSET", key.worker(worker), "stops", stops)
    end
    hash.write(key.worker(worker), "priority", priority ~= "0" and priority)
    redis.call("ZADD", key.heartbeats, call.now, worker)
    redis.call("ZADD", key.joined, "NX", call.now, worker)
    workers.write_retention(worker)
    local is_first = workers.attach(worker, profile, types)

    hooks.recheck() -- the adopted settings may have changed limits
    -- Only the slots of this worker are new, unless a limit now lets jobs start.
    local fits_others = #hooks.types_to_fill() > 0
    local row, served, _, free = free_slots.terms(worker)
    local view = fits_others and slot_choice.view() or free_slots.own(worker, row, free)
    local unfilled
    if is_first and #types > protocol.MAX_CHOSEN_FROM then -- it wrote a key per type: `claim` fills the slots
        unfilled = table.concat(types, " ") .. " " .. table.concat(hooks.types_to_fill(), " ")
    else
        unfilled = fill.fill(served, "", settings_in_force.read(), view)[1]
    end
    if unfilled == "" then
        prefetch.request_jobs(worker, types, tonumber(redis.call("HGET", key.worker(worker), "free") or 0))
    end
    return { unfilled, namesake and namesake ~= worker and namesake or "", replaced, void, call.now_us }
end

-- sync: a worker's heartbeat with the claims that it holds. A claim missing from the list is returned only if it is
-- unread, or once the worker confirms that it lacks the claim.
--
-- Returns {registered, ticker, unfilled, {unnamed id, fencing token, ...}, {void id, ...}, revision, now, returned}.
--   registered: 0 if the worker must join again.
--   ticker: 1 if the worker should tick for the fleet.
--   unfilled: see `fill`.
--   unnamed: claims missing from the worker's list, which it must confirm.
--   void: claims in the worker's list that no longer belong to it.
--   revision: revision of the settings.
--   now: server time in µs, for jobs that expire while they wait in the worker.
--   returned: number of the worker's jobs that are pending again.
-- Cost: O(claims of the worker). One invocation returns or queries at most MAX_MOVES of them, and some MB.

-- Returns true if the worker holds a claim that the server lacks: the claim was deleted by another client, but the job
-- hash still names it. Restores the claim.
local function restore_claim(worker, id, fence)
    local state, holder, own_fence = unpack(redis.call("HMGET", key.job(id), "state", "worker", "fence"))
    if state ~= "claimed" or holder ~= worker or own_fence ~= fence then
        return false
    end
    redis.call("HSET", key.claims(worker), id, fence)
    corrupt.record("the claim of job " .. id .. ", made again since " .. worker .. " holds it")
    return true
end

-- Raises an error if the counts of this worker's free slots are corrupt. Other server functions would not fail on them:
-- the worker would get no jobs.
local function check_free_slots(worker)
    local profile, free = unpack(redis.call("HMGET", key.worker(worker), "profile", "free"))
    local counted = redis.call("HGET", key.free_slots, profile) or "0"
    free = tonumber(free) or 0
    if not string.find(counted, "^%d+$") or tonumber(counted) < free
        or (free > 0 and not redis.call("ZSCORE", key.free(profile), worker)) then
        error("spoiled free slots of worker " .. worker)
    end
end

function functions.sync(ARGV)
    local worker = ARGV[1]
    local slots_in_all = tonumber(ARGV[2])
    local other = ARGV[3] -- slots occupied by requests without a claim, minus the slots that claims lend
    local draining = ARGV[4] == "1" -- true if the worker no longer reads its inbox
    -- ARGV[5..]: job id, fencing token, µs since its task started (-1: not started), for each held claim

    -- A worker that was closed while it was silent must join again before it gets jobs.
    local accepting, app = unpack(redis.call("HMGET", key.worker(worker), "accepting", "app"))
    if not accepting or (accepting == "0" and not draining) then
        return { 0, 0, "", {}, {}, 0, call.now_us, 0 }
    end
    redis.call("ZADD", key.heartbeats, call.now, worker)
    redis.call("HSET", key.worker(worker), "other", other)
    if app then
        settings_in_force.keep(app)
    end
    workers.resize(worker, slots_in_all)
    workers.write_retention(worker)
    if draining then
        workers.close(worker)
    end

    local settings = settings_in_force.read()
    local claimed = redis.call("HGETALL", key.claims(worker))
    local fences = flat.values(claimed)
    local held, void, unnamed = {}, {}, {}
    for i = 5, #ARGV, 3 do
        local id, fence, running_us = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
        held[id] = fence
        if fences[id] ~= fence and not restore_claim(worker, id, fence) then
            void[#void + 1] = id
        elseif running_us >= 0 then
            redis.call("HSETNX", key.job(id), "started", call.text(call.now_us - running_us))
        end
    end

    local types = workers.types_of(worker)
    local served, checked, bytes = #types, 0, 0
    for i = 1, #claimed, 2 do
        local id, fence = claimed[i], claimed[i + 1]
        if checked == protocol.MAX_MOVES or bytes > protocol.MAX_BYTES then
            break
        end
        if held[id] ~= fence then
            local age_us = call.now_us - (tonumber(redis.call("HGET", key.job(id), "claimed")) or 0)
            -- A younger claim may still be on its way to the worker.
            if draining or age_us > settings.heartbeat_interval_us then
                local is_unread, compared_bytes = claims.is_unread(worker, id)
                checked, bytes = checked + 1, bytes + compared_bytes
                if is_unread or draining then
                    types[#types + 1] = requeue.requeue(worker, id, "returned", settings)
                else
                    unnamed[#unnamed + 1] = id
                    unnamed[#unnamed + 1] = fence
                end
            end
        end
    end
    local returned = #types - served
    free_slots.recount(worker)
    check_free_slots(worker)

    local ticker = workers.is_ticker(worker)
    local free, unfilled = tonumber(redis.call("HGET", key.worker(worker), "free") or 0), ""
    -- Otherwise the worker's types have no free slots, except on other workers, which also sync.
    if free > 0 or returned > 0 or next(call.to_fill) then
        unfilled = fill.anywhere(types, settings)
        free = tonumber(redis.call("HGET", key.worker(worker), "free") or 0)
    end
    if unfilled == "" then
        prefetch.request_jobs(worker, workers.types_of(worker), free)
    end
    return { 1, ticker and 1 or 0, unfilled, unnamed, void, settings.revision, call.now_us, returned }
end

-- heartbeat: records that a worker is alive, and whether its event loop runs. The worker's guard invokes it. While the
-- event loop is stalled, the worker gets no jobs and its unread jobs are returned. The worker keeps the jobs it has
-- read.
--
-- Returns {registered, again, unfilled}.
--   registered: 0 if the worker is unknown or its jobs are being reclaimed. Nothing has changed then.
--   again: 1 if more jobs are unread and the caller must invoke the function again.
--   unfilled: see `fill`.
-- Cost: O(1). For a stalled event loop, O(moves * log n), at most MAX_MOVES moves per invocation and some MB.

-- Returns jobs from the inbox to their queues, and returns the jobs' types. A job popped from the inbox was never read.
local function return_unread(worker, settings)
    local types, bytes = {}, 0
    for _ = 1, protocol.MAX_MOVES do
        local unread = bytes <= protocol.MAX_BYTES and redis.call("RPOP", key.inbox(worker))
        if not unread then
            break
        end
        bytes = bytes + #unread
        local id, fence = string.match(unread, "^(%S+) (%S+)")
        if id and claims.held(worker, id, fence) then -- false for control messages
            types[#types + 1] = requeue.requeue(worker, id, "returned", settings)
        end
    end
    return types
end

function functions.heartbeat(ARGV)
    local worker = ARGV[1]
    local loop_runs = ARGV[2] == "1" -- true if the event loop runs

    local seen = redis.call("ZSCORE", key.heartbeats, worker)
    if not seen or tonumber(seen) == protocol.GIVEN_UP_US then
        return { 0, 0, "" }
    end
    redis.call("ZADD", key.heartbeats, call.now, worker)
    local settings = settings_in_force.read()
    local types = {}
    if not loop_runs then
        redis.call("HSET", key.worker(worker), "stalled", "1") -- no jobs are placed until `workers.resume`
        free_slots.recount(worker)
        types = return_unread(worker, settings)
    elseif workers.resume(worker) then
        types = workers.types_of(worker)
        free_slots.recount(worker)
    end
    local unfilled = fill.anywhere(types, settings)
    return { 1, not loop_runs and redis.call("LLEN", key.inbox(worker)) > 0 and 1 or 0, unfilled }
end

-- leave: a worker leaves. The jobs that it still holds are requeued with their original enqueue time. Acked jobs are
-- lost.
--
-- Returns {unfilled, again, returned}. Nothing changes for an unknown worker.
--   unfilled: see `fill`.
--   again: 1 if the worker still holds jobs and the caller must invoke the function again.
--   returned: number of jobs that are pending again.
-- Cost: at most MAX_MOVES claims per invocation.
function functions.leave(ARGV)
    local worker = ARGV[1]

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { "", 0, 0 }
    end
    local settings = settings_in_force.read()
    local types = {}
    local _, is_gone = dead_workers.take_back(worker, protocol.MAX_MOVES, types, settings)
    local returned = #types
    return { fill.anywhere(types, settings), is_gone and 0 or 1, returned }
end

-- recover: claimed -> pending, for all jobs of a worker that ended, as its guard observed. For a reclaimed job that
-- had a slot, a delivery is counted. Acked jobs are lost.
--
-- Returns {again, recovered, unfilled}. Nothing changes for an unknown worker.
--   again: 1 if the worker held more jobs and the caller must invoke the function again.
--   recovered: number of reclaimed jobs.
--   unfilled: see `fill`.
-- Cost: O(moves * log n), at most MAX_MOVES moves per invocation.
function functions.recover(ARGV)
    local worker = ARGV[1]

    if redis.call("EXISTS", key.worker(worker)) == 0 then
        return { 0, 0, "" }
    end
    local settings = settings_in_force.read()
    local types = {}
    local recovered, gone = dead_workers.take_back(worker, protocol.MAX_MOVES, types, settings, "died")
    return { gone and 0 or 1, recovered, fill.anywhere(types, settings) }
end
