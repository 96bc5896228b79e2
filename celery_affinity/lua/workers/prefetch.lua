-- prefetch: jobs that a worker holds beyond its slots (`affinity_lookahead`), to start them when its slots are free,
-- for tasks that are shorter than a round trip. If another worker has a free slot and nothing to do, or if a job on
-- demand waits, the holder is asked for those that have not started.

local ahead = {} -- the functions of a view of places beyond the slots of a worker

function ahead.free_for()
    return 1
end

-- RETURNS how much of the room a job of `type` takes; nil if the worker takes none.
local function cost(view, type)
    if not view.costs then
        return 1
    end
    return view.costs[type]
end

function ahead.any_free(view, type)
    local its_cost = cost(view, type)
    return its_cost ~= nil and its_cost <= view.left
end

function ahead.best(view)
    return view.worker
end

function ahead.occupy(view, _, type)
    view.left = view.left - cost(view, type)
end

function ahead.write() end -- the worker has no free slot, before and after

-- RETURNS a view, as `free_slots.own`, of the places beyond the slots of `worker`, which holds `beyond` jobs there
-- already. `may_hold`: as a release says it (rules/ahead): a number of jobs, or an amount of work in µs and, for each
-- type of which jobs are taken, how long such a job takes. `left`: what there is room for, in jobs or in µs. `costs`:
-- type -> how much of that a job of the type takes; nil if each job takes one place.
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

-- RETURNS whether a job on demand is among those of `waiting`.
local function has_on_demand(waiting)
    for _, type in ipairs(waiting.types) do
        if lanes.has_demand(waiting.heads[type]) then
            return true
        end
    end
    return false
end

-- Asks `holder` for `number` jobs of `types` that have not started.
function prefetch.ask_back(holder, number, types)
    local sign = "\n" .. protocol.BACK_SIGN .. " " .. number .. " " .. table.concat(types, " ")
    redis.call("LPUSH", key.inbox(holder), sign)
end

-- Gives `worker`, whose slots all have a job, pending jobs of its `types` that it `may_hold` beyond its slots. `row`:
-- the worker's. Adds to `reply`, which `fill` returned, without `unfilled`: so no slot that fits these jobs is
-- free. A worker that holds an amount of work gives way to jobs on demand: then it takes none, and is asked for those
-- that it holds.
function prefetch.fill(worker, row, types, may_hold, settings, reply)
    if not free_slots.takes_jobs(row) then
        return
    end
    local beyond = -free_slots.left(worker, row)
    local view = view_of(worker, may_hold, beyond)
    local waiting = queue_heads.of(types, view, settings)
    if view.gives_way and has_on_demand(waiting) then
        if beyond > 0 then
            prefetch.ask_back(worker, beyond, types)
        end
        return
    end
    local found, granted = fill.from(waiting, worker, view)
    for i, job in ipairs(granted) do
        reply[#reply + 1], reply[#reply + 2] = found[2 * i], found[2 * i + 1]
        redis.call("HSET", key.ahead, job.type, worker)
    end
end

-- Lets a worker that gave back jobs of the types in `again` be asked once more, if it still holds jobs beyond its
-- slots.
function prefetch.gave_back(worker, again)
    local row = free_slots.row(worker)
    if row[1] and free_slots.left(worker, row) < 0 then
        for type in pairs(again) do
            if redis.call("HEXISTS", key.capacity, type) == 1 then -- else nobody asks, or deletes this
                redis.call("HSET", key.ahead, type, worker)
            end
        end
    end
end

-- Asks for jobs for the `free` slots of `worker`, which has nothing to do: the last worker that got jobs of its `types`
-- beyond its slots is asked for as many of these. They come back through `release`, and are placed again.
function prefetch.ask(worker, types, free)
    if free == 0 or #types == 0 or redis.call("EXISTS", key.ahead) == 0 then
        return
    end
    local looked_at = math.min(#types, protocol.MOST_UNPACKED)
    for i, holder in ipairs(redis.call("HMGET", key.ahead, unpack(types, 1, looked_at))) do
        if holder then
            redis.call("HDEL", key.ahead, types[i])
            if holder ~= worker and redis.call("EXISTS", key.worker(holder)) == 1 then
                prefetch.ask_back(holder, free, types)
                return
            end
        end
    end
end
