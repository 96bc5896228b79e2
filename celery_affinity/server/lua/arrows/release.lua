-- release: claimed -> ended, and a slot is free again. The reply carries the next job for the slot, which so costs no
-- call of its own. A job that ends unsettled, neither acked nor rejected, is pending again, and counts one more
-- delivery. A job that the worker returns without having started it is pending again, and counts none. A repeated
-- sequence number gets the reply once more.
-- RETURNS {more, payload, ...}; more: as `fill` returns it. The payloads are the worker's next jobs, if it gets them
-- inline.
-- Cost: O(log n) in pending jobs; grows with the lanes of the types that the worker serves.
-- A reason for the length: most releases are of jobs that are done, by a worker that gets another job for each. What
-- other releases need is deferred, block by block.
-- @include generated/keys.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include placing/fill.lua
-- @include jobs/finished.lua

local worker = ARGV[1]
local sequence = ARGV[2]
local caller = ARGV[3] == "1" and worker or "" -- the worker that gets jobs inline
local most_ahead = tonumber(ARGV[4]) -- jobs that it holds beyond its slots at most, inline
-- ARGV[5..]: job id, fencing number, outcome of each: "acked", "ignored", "failed", "revoked", "expired", "rejected",
-- "unsettled" or "returned"; after a blank why may follow, in words

local SEQUENCE, TYPES_SERVED, KEEPS = 7, 8, 9 -- positions in `row`, after those of each worker's row
local row = free_slots.row(worker, "sequence", "types", "keeps")

if row[SEQUENCE] == sequence then
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
local types = workers.split(row[TYPES_SERVED]) -- of the worker, then those in `again`
local again = {} -- types of jobs that come back

local holds_less = false
for i = 5, #ARGV, 3 do
    local id, fence, outcome = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local known = claims.remove(worker, id, fence)
    holds_less = holds_less or known
    if known and row[KEEPS] then
        known.keep_s = tonumber(string.match(row[KEEPS], "^%d+"))
    end
    if known and outcome == "acked" and marks.of(id) ~= protocol.BATCH then
        finished.record(id, fence, known, "done", "")
    elseif known then
-- @deferred jobs/outcome.lua
        local how, why = read_outcome(outcome)
        known.is_doubtful = how ~= "acked" -- the worker had acked it, and lost it; or the task says that it was ignored
        local is_kept = how == "failed" and row[KEEPS] and string.find(row[KEEPS], "failed", 1, true)
        local is_settled = (ENDED[how] or known.acked) and marks.of(id) ~= protocol.BATCH and not is_kept
        if is_settled then
            finished.record(id, fence, known, ENDED[how] or "done", ENDED[how] and why or "")
        else
-- @deferred jobs/come_back.lua
-- @deferred jobs/batch_release.lua
            if marks.of(id) == protocol.BATCH and (ENDED[how] or known.acked) and not is_kept then
                local type = batch_release.record(id, fence, known, how, why)
                if type then
                    again[type] = true
                end
            elseif how == "rejected" or is_kept then
                come_back.drop(worker, id)
                come_back.bury(id, how, settings, why)
            else
                local type = come_back.put(worker, id, how == "unsettled", settings, why)
                if type then
                    again[type] = true
                end
            end
        end
    end
end
if not holds_less then -- else the first write was to remove a claim, which only frees memory
-- @deferred base/full_memory.lua
end
if row[STALLED] and caller ~= "" then
    workers.resume(worker) -- only the event loop gets jobs inline: it turns again
    row[STALLED] = false
end

local function view_of_all()
-- @deferred placing/which_slot.lua
    free_slots.recount(worker)
    return which_slot.view()
end

local fits_others = next(again) ~= nil -- jobs that come back may fit any free slot; others only the one free now
if moved and not fits_others then
    for _, type in ipairs(with_rules.gained()) do
        fits_others = fits_others or free_slots.free_for(type) > 0
    end
    moved = fits_others and moved or nil
end
local view
if fits_others then
    view = view_of_all()
else
    view = free_slots.own(worker, row)
    view.of_all = view_of_all
end
local served = #types
for type in pairs(again) do
    types[#types + 1] = type
end
local reply, inline
reply, inline, view = fill(types, caller, settings, view)
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
if row[PROFILE] then
    local granted = ""
    for _, job in ipairs(inline) do
        granted = granted .. job.id .. " " .. job.fence .. " "
    end
    redis.call("HSET", key.worker(worker), "sequence", sequence, "granted", granted)
end
return reply
