-- sync: a worker beats, and says what it holds. Only it can say that a claim is not with it:
-- one that it does not name is asked about, and comes back only when it renounces it, unless it is still unread.
-- RETURNS {known, ticker, more, {asked id, its number, ...}, {void id, ...}, revision, now, returned}
-- known 0: join again. ticker 1: tick for the fleet. asked: claims that it did not name. void: named, no longer its.
-- revision: that of the settings in force. now: the server's time, µs, by which jobs expire that wait in the worker.
-- returned: how many of its jobs are pending again.
-- Cost: O(claims of the worker); at most MOST_MOVES of them come back or are asked about in one call, and some MB.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include jobs/come_back.lua
-- @include placing/fill.lua
-- @include placing/which_slot.lua
-- @include fleet/lookahead.lua
-- @include base/settings_in_force.lua
-- @include jobs/claims.lua

local worker = ARGV[1]
local slots_in_all = tonumber(ARGV[2])
local other = ARGV[3] -- slots taken by what no claim shows, less those that claims lend
local draining = ARGV[4] == "1" -- it reads its inbox no more
-- ARGV[5..]: job id, fencing number, µs since its task started (-1: not yet) of each claim it holds


-- A worker that was closed while it was silent has to join again before jobs are placed on it.
local row = redis.call("HMGET", key.worker(worker), "accepting", "app")
local accepting = row[1]
if not accepting or (accepting == "0" and not draining) then
    return { 0, 0, "", {}, {}, 0, clock.now_us, 0 }
end
redis.call("ZADD", key.beats, clock.now, worker)
redis.call("HSET", key.worker(worker), "other", other)
if row[2] then
    settings_in_force.keep(row[2])
end
workers.resize(worker, slots_in_all)
if draining then
    workers.close(worker)
end

local settings = read_settings()
local claimed = redis.call("HGETALL", key.claims(worker))
local fences = {}
for i = 1, #claimed, 2 do
    fences[claimed[i]] = claimed[i + 1]
end
-- Somebody deleted the claim: what is known of the job says that it is this one.
local function is_its_own(id, fence)
    local row = redis.call("HMGET", key.job(id), "state", "worker", "fence")
    if row[1] ~= "claimed" or row[2] ~= worker or row[3] ~= fence then
        return false
    end
    redis.call("HSET", key.claims(worker), id, fence)
    spoiled.record("the claim of job " .. id .. ", made again since " .. worker .. " holds it")
    return true
end

-- Others place jobs by these. Spoiled, they make no error of their own: the worker would just get nothing.
local function check_free_slots()
    local row = redis.call("HMGET", key.worker(worker), "profile", "free")
    local free, in_all = tonumber(row[2]) or 0, redis.call("HGET", key.free_slots, row[1]) or "0"
    if not string.find(in_all, "^%d+$") or tonumber(in_all) < free
        or (free > 0 and not redis.call("ZSCORE", key.free(row[1]), worker)) then
        error("spoiled free slots of worker " .. worker)
    end
end

local held, void, asked = {}, {}, {}
for i = 5, #ARGV, 3 do
    local id, running_us = ARGV[i], tonumber(ARGV[i + 2])
    held[id] = ARGV[i + 1]
    if fences[id] ~= ARGV[i + 1] and not is_its_own(id, ARGV[i + 1]) then
        void[#void + 1] = id
    elseif running_us >= 0 then
        redis.call("HSETNX", key.job(id), "started", clock.text(clock.now_us - running_us))
    end
end

local types = workers.types_of(worker)
local served, looked_at, bytes = #types, 0, 0
for i = 1, #claimed, 2 do
    local id = claimed[i]
    if looked_at == protocol.MOST_MOVES or bytes > protocol.MOST_BYTES then
        break
    end
    if held[id] ~= claimed[i + 1] then
        local age_us = clock.now_us - (tonumber(redis.call("HGET", key.job(id), "claimed")) or 0)
        -- A younger one may be on its way to the worker.
        if draining or age_us > settings.heartbeat_interval_us then
            local is_unread, its_bytes = claims.is_unread(worker, id)
            looked_at, bytes = looked_at + 1, bytes + its_bytes
            if is_unread or draining then
                types[#types + 1] = come_back.put(worker, id, false, settings)
            else
                asked[#asked + 1] = id
                asked[#asked + 1] = claimed[i + 1]
            end
        end
    end
end
local returned = #types - served
free_slots.recount(worker)
check_free_slots()

local ticked = tonumber(redis.call("HGET", key.clock, "ticked")) or 0
local rank = redis.call("ZRANK", key.joined, worker)
local ticker = (rank and rank < protocol.TICKERS) or clock.now_us - ticked > protocol.TICKED_LATELY_US
local more = fill(types, "", settings, free_slots.view())[1]
if more == "" then
    lookahead.ask(worker, workers.types_of(worker), tonumber(redis.call("HGET", key.worker(worker), "free") or 0))
end
return { 1, ticker and 1 or 0, more, asked, void, settings.revision, clock.now_us, returned }
