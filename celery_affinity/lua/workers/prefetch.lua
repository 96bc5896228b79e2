-- prefetch: jobs that a worker holds beyond its slots (`affinity_lookahead`), and starts when a slot is free. It is
-- used for tasks shorter than a round trip. If another worker is idle, or an on-demand job waits, the holder is
-- requested to return the jobs that it has not started.

local ahead = {} -- functions of a view of a worker's capacity beyond its slots

function ahead.free_for() return 1 end

-- Returns the part of the capacity that a job of `type` takes, or nil if the worker accepts none.
local function cost(view, type)
    if not view.costs then
        return 1
    end
    return view.costs[type]
end

function ahead.any_free(view, type)
    local job_cost = cost(view, type)
    return job_cost ~= nil and job_cost <= view.left
end

function ahead.best(view) return view.worker end

function ahead.occupy(view, _, type)
    view.left = view.left - cost(view, type)
end

function ahead.write() end -- the worker has no free slot, before and after

-- Returns a view, like `free_slots.own`, of the capacity beyond the slots of `worker`, which already holds `beyond`
-- jobs there. `may_hold` (from a release): a number of jobs; or an amount of work in µs, and a duration per job for
-- each accepted type.
--   left: remaining capacity, in jobs or in µs.
--   costs: type -> cost of a job. If nil, each job costs 1.
local function view_of(worker, may_hold, beyond)
    local work_us, words = string.match(may_hold, "^(%d+) (.+)$")
    local costs
    if work_us then
        costs = {}
        for type, us in string.gmatch(words, "(%S+) (%d+)") do
            costs[type] = tonumber(us)
        end
    end
    return {
        worker = worker, left = tonumber(work_us) or tonumber(may_hold) - beyond, costs = costs, is_ahead = true,
        gives_way = work_us ~= nil, free_for = ahead.free_for, any_free = ahead.any_free, best = ahead.best,
        occupy = ahead.occupy, write = ahead.write,
    }
end

-- Returns true if `waiting` has an on-demand job.
local function has_on_demand(waiting)
    for _, type in ipairs(waiting.types) do
        if lanes.has_demand(waiting.heads[type]) then
            return true
        end
    end
    return false
end

-- Requests that `holder` return `number` unstarted jobs of `types`, with a control message.
function prefetch.request_return(holder, number, types)
    local message = "\n" .. protocol.BACK_SIGN .. " " .. number .. " " .. table.concat(types, " ")
    redis.call("LPUSH", key.inbox(holder), message)
end

-- Assigns pending jobs of `types` to the busy `worker`, which `may_hold` them beyond its slots. `row`: fields of the
-- worker's hash. Adds the jobs to `reply`. `reply` is the result of `fill` without unfilled types: so no free slot fits
-- these jobs. A worker that may hold an amount of work yields to on-demand jobs: then it gets no jobs, and must return
-- its prefetched jobs.
function prefetch.fill(worker, row, types, may_hold, settings, reply)
    if not free_slots.takes_jobs(row) then
        return
    end
    local beyond = -free_slots.remaining(worker, row)
    local view = view_of(worker, may_hold, beyond)
    local waiting = queue_heads.of(types, view, settings)
    if view.gives_way and has_on_demand(waiting) then
        if beyond > 0 then
            prefetch.request_return(worker, beyond, types)
        end
        return
    end
    local reply_part, granted = fill.from(waiting, worker, view)
    for i, job in ipairs(granted) do
        reply[#reply + 1], reply[#reply + 2] = reply_part[2 * i], reply_part[2 * i + 1]
        redis.call("HSET", key.prefetch_turn, job.type, worker)
    end
end

-- Makes a worker that returned jobs of the types in `again` a holder of these types again, if it still has prefetched
-- jobs.
function prefetch.note_return(worker, again)
    local row = free_slots.row(worker)
    if row[1] and free_slots.remaining(worker, row) < 0 then
        for type in pairs(again) do
            if redis.call("HEXISTS", key.capacity, type) == 1 then -- otherwise the field is never used or deleted
                redis.call("HSET", key.prefetch_turn, type, worker)
            end
        end
    end
end

-- Requests jobs for the `free` slots of the idle `worker`: the last worker that prefetched jobs of its `types` must
-- return as many jobs. `release` returns them to their queues, and they are placed again.
function prefetch.request_jobs(worker, types, free)
    if free == 0 or #types == 0 or redis.call("EXISTS", key.prefetch_turn) == 0 then
        return
    end
    local checked = math.min(#types, protocol.MAX_UNPACKED)
    for i, holder in ipairs(redis.call("HMGET", key.prefetch_turn, unpack(types, 1, checked))) do
        if holder then
            redis.call("HDEL", key.prefetch_turn, types[i])
            if holder ~= worker and redis.call("EXISTS", key.worker(holder)) == 1 then
                prefetch.request_return(holder, free, types)
                return
            end
        end
    end
end
