-- heartbeat: a worker's guard says that the worker lives, and whether its event loop runs. While the loop stands
-- still, no job is placed on the worker, and its unread jobs are pending again; the jobs that it has read it keeps.
-- RETURNS {known, again, unfilled}; known 0: the worker is unknown, or its jobs are being recovered, and nothing has
-- changed. again 1: call again, more jobs are unread. unfilled: as `fill` returns it.
-- Cost: O(1); when the loop stands still, O(moves * log n), at most MOST_MOVES of them in one call, and some MB.

-- Takes back the jobs in the inbox: to pop them there proves that they were never read. RETURNS their types.
local function return_unread(worker, settings)
    local types, bytes = {}, 0
    for _ = 1, protocol.MOST_MOVES do
        local unread = bytes <= protocol.MOST_BYTES and redis.call("RPOP", key.inbox(worker))
        if not unread then
            break
        end
        bytes = bytes + #unread
        local id, fence = string.match(unread, "^(%S+) (%S+)")
        if id and claims.held(worker, id, fence) then -- a sign is no job
            types[#types + 1] = requeue.requeue(worker, id, "returned", settings)
        end
    end
    return types
end

function functions.heartbeat(ARGV)
    local worker = ARGV[1]
    local loop_runs = ARGV[2] == "1" -- whether the event loop runs

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
