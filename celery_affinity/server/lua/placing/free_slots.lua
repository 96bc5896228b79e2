-- slots: free slots are counted per profile (the set of types a worker serves), not per type and worker.
-- @include base/clock.lua
local slots = {}

-- RETURNS what a worker's hash says of its slots, then its fields `...`.
function slots.row(worker, ...)
    return redis.call("HMGET", key.worker(worker), "profile", "slots", "other", "accepting", "free", "stalled", ...)
end

-- RETURNS the profile of a worker, its free slots as they are, and as they are written: slots - claims - other running
-- requests, of which there are less than none when claims that wait for a rate limit lend their slots. Derived, not
-- added up, so that no sequence of calls can leak one. nil for a worker that is not known.
local function count(worker, row)
    row = row or slots.row(worker)
    if not row[1] then
        return nil
    end
    local free = 0
    if row[4] == "1" and not row[6] and tonumber(row[2]) > 0 then -- who has no slot has none to lend
        free = math.max(0, tonumber(row[2]) - tonumber(row[3]) - redis.call("HLEN", key.claims(worker)))
    end
    return row[1], free, tonumber(row[5])
end

-- Writes that the free slots of a worker changed.
local function write(worker, profile, free, was)
    if free > 0 then
        redis.call("ZADD", key.free(profile), clock.now_us, worker)
    elseif was > 0 then
        redis.call("ZREM", key.free(profile), worker)
    end
    if free ~= was then
        redis.call("HSET", key.worker(worker), "free", free)
        redis.call("HINCRBY", key.free_slots, profile, free - was)
    end
end

-- Brings the free slots of a worker up to date with what it holds.
function slots.settle(worker)
    local profile, free, was = count(worker)
    if profile and free ~= was then
        write(worker, profile, free, was)
    end
end

-- RETURNS how many free slots fit `type`.
function slots.free_for(type)
    local profiles = redis.call("ZRANGE", key.serving(type), 0, -1)
    local sum = 0
    for first = 1, #profiles, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #profiles)
        local some = redis.call("HMGET", key.free_slots, unpack(profiles, first, last))
        for _, free in ipairs(some) do
            sum = sum + (tonumber(free) or 0)
        end
    end
    return sum
end

-- A view of free slots lasts for one call of a script: it reads each figure once, is told what changes, and writes it
-- at its end (`settle`). `left` is how many there are, where that is known.
-- This one is of the slots of `worker`, as `view.lua` has one of all: for who took back from it what it held. Every
-- other free slot was looked at when it became free, or when the jobs came that are pending.
-- `row`: its `slots.row`.
function slots.own(worker, row)
    local profile, left, was = count(worker, row)
    local view, taken
    view = {
        left = left or 0,
        free_for = function(type)
            return slots.free_for(type) + view.left - was
        end,
        any_free = function()
            return view.left > 0
        end,
        best = function()
            return worker
        end,
        take = function()
            view.left, taken = view.left - 1, true
        end,
        settle = function()
            if profile and (taken or view.left ~= was) then
                write(worker, profile, view.left, was)
            end
        end,
    }
    return view
end
