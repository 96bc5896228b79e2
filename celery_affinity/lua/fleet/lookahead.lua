-- lookahead: jobs that a worker holds beyond its slots (`affinity_lookahead`), to start them when its slots are free,
-- for tasks that are shorter than a round trip. If another worker has a free slot and nothing to do, the holder is
-- asked for those that have not started.

local ahead = {} -- the functions of a view of places beyond the slots of a worker

function ahead.free_for()
    return 1
end

function ahead.any_free(view)
    return view.left > 0
end

function ahead.best(view)
    return view.worker
end

function ahead.occupy(view)
    view.left = view.left - 1
end

function ahead.write() end -- the worker has no free slot, before and after

-- RETURNS a view, as `free_slots.own`, of the places for the `most` jobs that `worker` may hold beyond its slots.
local function view_of(worker, most)
    local row = free_slots.row(worker)
    local room = free_slots.takes_jobs(row) and free_slots.left(worker, row) + most or 0
    return {
        worker = worker, left = room, is_ahead = true, free_for = ahead.free_for, any_free = ahead.any_free,
        best = ahead.best, occupy = ahead.occupy, write = ahead.write,
    }
end

-- Gives `worker` pending jobs of its `types`, until it holds `most` jobs beyond its slots. Adds to `reply` and
-- `inline`, which `fill` returned, without `more`: so no slot that fits these jobs is free.
function lookahead.fill(worker, types, most, settings, reply, inline)
    local more, granted = fill.fill(types, worker, settings, view_of(worker, most))
    for i, job in ipairs(granted) do
        reply[#reply + 1], inline[#inline + 1] = more[i + 1], job
        redis.call("HSET", key.ahead, job.type, worker)
    end
end

-- Lets a worker that gave back jobs of the types in `again` be asked once more, if it still holds jobs beyond its
-- slots.
function lookahead.gave_back(worker, again)
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
function lookahead.ask(worker, types, free)
    if free == 0 or #types == 0 or redis.call("EXISTS", key.ahead) == 0 then
        return
    end
    local looked_at = math.min(#types, protocol.MOST_UNPACKED)
    for i, holder in ipairs(redis.call("HMGET", key.ahead, unpack(types, 1, looked_at))) do
        if holder then
            redis.call("HDEL", key.ahead, types[i])
            if holder ~= worker and redis.call("EXISTS", key.worker(holder)) == 1 then
                redis.call("LPUSH", key.inbox(holder), "\nback " .. free .. " " .. table.concat(types, " "))
                return
            end
        end
    end
end
