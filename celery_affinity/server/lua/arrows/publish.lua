-- publish: client -> pending, or scheduled if the job's time is still to come. Places the jobs at once if slots are
-- free. A known id changes nothing: a call repeated after a lost reply publishes once.
-- RETURNS {state, more, served, state, served, ...}; state 0: known already, 1: pending or placed, 2: scheduled, 3:
-- revoked before, expired, or dropped, 5: refused, and nothing is written of the job, 6: merged with others that wait,
-- 7: refused with all others of the call, since as many jobs wait as a type may have. more: as `fill` returns it.
-- served 0: the job waits, and no live worker serves its type; of a refused job served is the name of the refused
-- field; for 7, the type, how many of its jobs wait, and how many may. Each further job adds state and served.
-- Cost: O(log n) in pending jobs, for each job. A full server may refuse the first write, before anything is written.
-- @include generated/keys.lua
-- @include jobs/fields.lua
-- @include jobs/enter.lua

-- ARGV[1..]: the fields of each job, in the order of rules/job_fields; then, if there are any, the bounds of types
local bounded = #ARGV % job_fields.COUNT == 1 and ARGV[#ARGV] -- type=most/full, separated by blanks
if #ARGV % job_fields.COUNT ~= 0 and not bounded then
    return redis.error_reply("ERR each job has " .. job_fields.COUNT .. " arguments, got: " .. #ARGV .. " in all")
end
local arguments, reply, types, fresh = ARGV, {}, {}, {}
local alone -- the only job, to be added to a lane if it is not placed
local keep_bound -- drops a job if too many wait; nil without bounds

-- Adds a job. `nth`: its place in the call, from 0. The jobs of one call are 1 µs apart, so that they stay in order.
local function add(nth, job)
    local bad = fields.bad(job)
    if bad then
        reply[2 * nth + 1], reply[2 * nth + 2] = protocol.IS_REFUSED, bad
        return
    end
    local state, served, is_first
    state, served, is_first, alone = put(job, clock.now_us + nth, #ARGV == job_fields.COUNT)
    if keep_bound then
        state = keep_bound(job, state)
    end
    reply[2 * nth + 1], reply[2 * nth + 2] = state, served
    types[#types + 1] = is_first and job.type or nil
    local waits = state == protocol.IS_PENDING or state == protocol.IS_MERGED
    fresh[job.id] = waits and job.message or fresh[job.id] -- a call may repeat a job
    if state == protocol.IS_MERGED and #ARGV > job_fields.COUNT + 1 then
        local batch = redis.call("HGET", key.job(job.id), "into")
        local first = redis.call("ZRANGE", key.callers(batch), 0, 0)[1]
        fresh[batch] = fresh[first] -- if this call published it
    end
end

if bounded then
-- @deferred jobs/bounds.lua
    bounds.read(bounded)
    local full = bounds.full(arguments)
    if full then
        return full
    end
    keep_bound = bounds.keep
end
for first = 1, #ARGV - (bounded and 1 or 0), job_fields.COUNT do
    add((first - 1) / job_fields.COUNT, job_fields.at(arguments, first))
end
return { reply[1], place(types, fresh, alone), unpack(reply, 2) }
