-- publish: client -> pending, or scheduled if its time is still to come. Places the jobs at once if slots are free.
-- A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, more, served, state, served, ...}; state 0: known already, 1: pending or placed, 2: scheduled,
-- 3: revoked before, or expired, 5: refused. served 0: it is pending, and no live worker serves its type; of a refused
-- job the name of the field for which it is: nothing is written of it. A pair for each further job.
-- Cost: O(log n) in pending jobs, for each job. Its first write may be refused by a full server, before anything is
-- written.
-- @include generated/keys.lua
-- @include jobs/fields.lua
-- @include jobs/enter.lua

local id = ARGV[1]
local type = ARGV[2] -- encoded
local mode = ARGV[3] -- "queued" or "demand"
local priority = ARGV[4] -- 0..10, 10 highest
local delay_us = ARGV[5] -- until it is due; the publisher's clock is not asked what time it is
local task_id = ARGV[6] -- encoded; "" if it has none
local task_name = ARGV[7]
local expires_us = ARGV[8] -- until it expires; "" for never
local stamps = ARGV[9] -- "name:value", encoded, separated by blanks
local message = ARGV[10] -- as kombu sends it
-- ARGV[11..]: the same of each further job

if #ARGV % 10 ~= 0 then
    return redis.error_reply("ERR each job has 10 arguments, got: " .. #ARGV .. " in all")
end
local reply, types, fresh = {}, {}, {}
local alone -- of the only job, what is to be put in a lane if it is not placed

-- `nth`: from 0; those of one call are a µs apart, so that they stay in order.
local function add(nth, job)
    local bad = fields.bad(job)
    if bad then
        reply[2 * nth + 1], reply[2 * nth + 2] = protocol.IS_REFUSED, bad
        return
    end
    local state, served, is_first
    state, served, is_first, alone = put(job, clock.now_us + nth, #ARGV == 10)
    reply[2 * nth + 1], reply[2 * nth + 2] = state, served
    types[#types + 1] = is_first and job.type or nil
    fresh[job.id] = state == protocol.IS_PENDING and job.message or nil
end

add(0, {
    id = id, type = type, mode = mode, priority = priority, delay_us = delay_us, task_id = task_id,
    task_name = task_name, expires_us = expires_us, stamps = stamps, message = message,
})
for i = 11, #ARGV, 10 do
    add((i - 1) / 10, {
        id = ARGV[i], type = ARGV[i + 1], mode = ARGV[i + 2], priority = ARGV[i + 3], delay_us = ARGV[i + 4],
        task_id = ARGV[i + 5], task_name = ARGV[i + 6], expires_us = ARGV[i + 7], stamps = ARGV[i + 8],
        message = ARGV[i + 9],
    })
end
return { reply[1], place(types, fresh, alone), unpack(reply, 2) }
