-- heartbeat: records that a worker is alive, and whether its event loop runs. The worker's guard invokes it. While the
-- event loop is stalled, the worker gets no jobs and its unread jobs are returned. The worker keeps the jobs it has
-- read.
--
-- Returns {known, again, unfilled}.
--   known: 0 if the worker is unknown or its jobs are being reclaimed. Nothing has changed then.
--   again: 1 if more jobs are unread and the caller must invoke the function again.
--   unfilled: see `fill`.
-- Cost: O(1). For a stalled event loop, O(moves * log n), at most MOST_MOVES moves per invocation and some MB.

-- Returns jobs from the inbox to their queues, and returns the jobs' types. A job popped from the inbox was never read.
local function return_unread(worker, settings)
    local types, bytes = {}, 0
    for _ = 1, protocol.MOST_MOVES do
        local unread = bytes <= protocol.MOST_BYTES and redis.call("RPOP", key.inbox(worker))
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
        workers.stall(worker)
        types = return_unread(worker, settings)
    elseif workers.resume(worker) then
        types = workers.types_of(worker)
        free_slots.recount(worker)
    end
    local unfilled = fill.fill(types, "", settings, slot_choice.view())[1]
    return { 1, not loop_runs and redis.call("LLEN", key.inbox(worker)) > 0 and 1 or 0, unfilled }
end
