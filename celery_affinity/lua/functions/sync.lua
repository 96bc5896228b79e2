-- sync: a worker's heartbeat with the claims that it holds. A claim missing from the list is returned only if it is
-- unread, or once the worker confirms that it lacks the claim.
--
-- Returns {known, ticker, unfilled, {asked id, fencing token, ...}, {void id, ...}, revision, now, returned}.
--   known: 0 if the worker must join again.
--   ticker: 1 if the worker should tick for the fleet.
--   unfilled: see `fill`.
--   asked: claims missing from the worker's list, which it must confirm.
--   void: claims in the worker's list that no longer belong to it.
--   revision: revision of the settings.
--   now: server time in µs, for jobs that expire while they wait in the worker.
--   returned: number of the worker's jobs that are pending again.
-- Cost: O(claims of the worker). One invocation returns or queries at most MOST_MOVES of them, and some MB.

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
    workers.say_what_is_kept(worker)
    if draining then
        workers.close(worker)
    end

    local settings = settings_in_force.read()
    local claimed = redis.call("HGETALL", key.claims(worker))
    local fences = flat.values(claimed)
    local held, void, asked = {}, {}, {}
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
        if checked == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
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
                    asked[#asked + 1] = id
                    asked[#asked + 1] = fence
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
        unfilled = fill.fill(types, "", settings, slot_choice.view())[1]
        free = tonumber(redis.call("HGET", key.worker(worker), "free") or 0)
    end
    if unfilled == "" then
        prefetch.ask(worker, workers.types_of(worker), free)
    end
    return { 1, ticker and 1 or 0, unfilled, asked, void, settings.revision, call.now_us, returned }
end
