-- release: a slot is free again. The reply carries what the caller got for it: the next job costs no call of its own.
-- A job that ends unsettled, neither acked nor rejected, goes back to pending, counted as a delivery; so does one
-- that is returned because nobody there consumes it, not counted.
-- A repeated sequence number gets the same reply.
-- RETURNS {more, payload, ...}; the payloads are the caller's next jobs, if it takes them inline.
-- Cost: O(log n) in pending jobs; grows with the lanes of the types that the worker serves.
-- Most releases are of jobs that are done, by a worker that gets another one for each: what else it takes is defined
-- only where it is needed.
-- @include generated/keys.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include placing/fill.lua
-- @include jobs/finished.lua

local worker = ARGV[1]
local sequence = ARGV[2]
local caller = ARGV[3] == "1" and worker or "" -- whether the caller takes jobs inline
local most_ahead = tonumber(ARGV[4]) -- jobs it takes beyond its slots, inline
-- ARGV[5..]: job id, fencing number, outcome of each: "acked", "failed", "revoked", "expired", "rejected", "unsettled"
-- or "returned"; why may follow after a blank, in words

local row = free_slots.row(worker, "sequence", "types")

if row[7] == sequence then
-- @deferred jobs/claims.lua
    local reply = { "" }
    for id, fence in string.gmatch(redis.call("HGET", key.worker(worker), "granted"), "(%S+) (%S+)") do
        if claims.held(worker, id, fence) then
            reply[#reply + 1] = claims.payload_again(id)
        end
    end
    return reply
end

local settings = read_settings()
local types = workers.split(row[8]) -- of the worker, then those in `again`
local again = {} -- types of jobs that come back

local holds_less = false
for i = 5, #ARGV, 3 do
    local id, fence, outcome = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local known = claims.remove(worker, id, fence)
    holds_less = holds_less or known
    if known and outcome == "acked" then
        finished.record(id, fence, known, "done", "")
    elseif known then
-- @deferred jobs/outcome.lua
        local how, why = read_outcome(outcome)
        if ENDED[how] then
            finished.record(id, fence, known, ENDED[how], why)
        elseif known.acked then
            finished.record(id, fence, known, "done", "")
        else
-- @deferred jobs/come_back.lua
            if how == "rejected" then
                come_back.drop(worker, id)
                come_back.bury(id, "rejected", settings, why)
            else
                local type = come_back.put(worker, id, how == "unsettled", settings, why)
                if type then
                    again[type] = true
                end
            end
        end
    end
end
if not holds_less then -- what took back was the first write, and only freed
-- @deferred base/full_memory.lua
end
if row[6] and caller ~= "" then
    workers.resume(worker) -- jobs are taken inline from the event loop only, so it turns again
    row[6] = false
end

local view
if next(again) then -- jobs that come back may fit any free slot; all others only the one that is free now
-- @deferred placing/which_slot.lua
    free_slots.recount(worker)
    view = free_slots.view()
else
    view = free_slots.own(worker, row)
end
local served = #types
for type in pairs(again) do
    types[#types + 1] = type
end
local reply, inline = fill(types, caller, settings, view)
local left = view.left or tonumber(redis.call("HGET", key.worker(worker), "free") or 0)

if next(again) or most_ahead > 0 or left > 0 then
-- @deferred fleet/lookahead.lua
    if next(again) then
        lookahead.gave_back(worker, again)
    end
    if reply[1] == "" then
        for i = #types, served + 1, -1 do
            types[i] = nil
        end
        if most_ahead > 0 and caller ~= "" then
            lookahead.fill(worker, types, most_ahead, settings, reply, inline)
        end
        lookahead.ask(worker, types, left)
    end
end
if row[1] then
    local granted = ""
    for _, job in ipairs(inline) do
        granted = granted .. job.id .. " " .. job.fence .. " "
    end
    redis.call("HSET", key.worker(worker), "sequence", sequence, "granted", granted)
end
return reply
