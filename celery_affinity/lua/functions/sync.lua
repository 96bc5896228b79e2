-- sync: a worker's heartbeat, with the claims that it holds. A claim that it does not name comes back only if it is
-- unread, or once the worker confirms that it lacks the claim.
-- RETURNS {known, ticker, unfilled, {asked id, its number, ...}, {void id, ...}, revision, now, returned}
-- known 0: join again. ticker 1: tick for the fleet. unfilled: as `fill` returns it. asked: claims that the worker did
-- not name. void: claims that the worker named, and that are no longer its own. revision: number of the settings in
-- force. now: the server's time, µs, by which jobs expire that wait in the worker. returned: number of the worker's
-- jobs that are pending again. A reason for the length: what a worker says of its claims is compared with three keys,
-- in one pass over each.
-- Cost: O(claims of the worker); at most MOST_MOVES of them come back or are asked about in one call, and some MB.

-- RETURNS whether a claim that the server does not know is the worker's own: somebody deleted it, and the job's row
-- still names it. Makes the claim again.
local function is_its_own(worker, id, fence)
    local state, holder, its_fence = unpack(redis.call("HMGET", key.job(id), "state", "worker", "fence"))
    if state ~= "claimed" or holder ~= worker or its_fence ~= fence then
        return false
    end
    redis.call("HSET", key.claims(worker), id, fence)
    corrupt.record("the claim of job " .. id .. ", made again since " .. worker .. " holds it")
    return true
end

-- Raises an error if the counts are spoiled by which other arrows find this worker's free slots. Those arrows would
-- raise none: the worker would just get no jobs.
local function check_free_slots(worker)
    local profile, free = unpack(redis.call("HMGET", key.worker(worker), "profile", "free"))
    local in_all = redis.call("HGET", key.free_slots, profile) or "0"
    free = tonumber(free) or 0
    if not string.find(in_all, "^%d+$") or tonumber(in_all) < free
        or (free > 0 and not redis.call("ZSCORE", key.free(profile), worker)) then
        error("spoiled free slots of worker " .. worker)
    end
end

function functions.sync(ARGV)
    local worker = ARGV[1]
    local slots_in_all = tonumber(ARGV[2])
    local other = ARGV[3] -- slots occupied by requests without a claim, less the slots that claims lend
    local draining = ARGV[4] == "1" -- whether it reads its inbox no more
    -- ARGV[5..]: job id, fencing number, µs since its task started (-1: not yet) of each claim it holds

    -- A worker that was closed while it was silent has to join again before jobs are placed on it.
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
        if fences[id] ~= fence and not is_its_own(worker, id, fence) then
            void[#void + 1] = id
        elseif running_us >= 0 then
            redis.call("HSETNX", key.job(id), "started", call.text(call.now_us - running_us))
        end
    end

    local types = workers.types_of(worker)
    local served, looked_at, bytes = #types, 0, 0
    for i = 1, #claimed, 2 do
        local id, fence = claimed[i], claimed[i + 1]
        if looked_at == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
            break
        end
        if held[id] ~= fence then
            local age_us = call.now_us - (tonumber(redis.call("HGET", key.job(id), "claimed")) or 0)
            -- A younger claim may be on its way to the worker.
            if draining or age_us > settings.heartbeat_interval_us then
                local is_unread, its_bytes = claims.is_unread(worker, id)
                looked_at, bytes = looked_at + 1, bytes + its_bytes
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
    -- Else no slot is free for its types, but those of workers that sync as well.
    if free > 0 or returned > 0 or next(call.to_fill) then
        unfilled = fill.fill(types, "", settings, slot_choice.view())[1]
        free = tonumber(redis.call("HGET", key.worker(worker), "free") or 0)
    end
    if unfilled == "" then
        prefetch.ask(worker, workers.types_of(worker), free)
    end
    return { 1, ticker and 1 or 0, unfilled, asked, void, settings.revision, call.now_us, returned }
end
