-- lookahead: jobs that a worker holds beyond its slots (`affinity_lookahead`), to start them when its slots are free:
-- for tasks that are shorter than a round trip. Who has a free slot and nothing to do asks for those that have not
-- started.
-- @include placing/fill.lua
local lookahead = {}

-- A view, as `free_slots.view`, of the jobs that `worker` may hold beyond its slots, `most` of them.
local function view_of(worker, most)
    local row = redis.call("HMGET", key.worker(worker), "slots", "other", "accepting", "stalled")
    local room = 0
    if row[3] == "1" and not row[4] and tonumber(row[1]) > 0 then
        room = math.min(most, tonumber(row[1]) + most - tonumber(row[2]) - redis.call("HLEN", key.claims(worker)))
    end
    local view = { left = room }
    function view.free_for()
        return 1
    end
    function view.any_free()
        return view.left > 0
    end
    function view.best()
        return worker
    end
    function view.occupy()
        view.left = view.left - 1
    end
    function view.write() end -- it has no slot free before and after
    return view
end

-- Gives `worker` what waits for a slot of its `types`, until it holds `most` jobs beyond its slots, as `fill` does:
-- adds to its `reply` and `inline`. No slot that fits is free: it follows a `fill` that has not answered `more`.
function lookahead.fill(worker, types, most, settings, reply, inline)
    local more, granted = fill(types, worker, settings, view_of(worker, most))
    for i, job in ipairs(granted) do
        reply[#reply + 1], inline[#inline + 1] = more[i + 1], job
        redis.call("HSET", key.ahead, job.type, worker)
    end
end

-- `worker` gave back jobs of the types in `again`. If it holds more, it may be asked once more.
function lookahead.gave_back(worker, again)
    local row = redis.call("HMGET", key.worker(worker), "slots", "other")
    if row[1] and redis.call("HLEN", key.claims(worker)) > tonumber(row[1]) - tonumber(row[2]) then
        for type in pairs(again) do
            if redis.call("HEXISTS", key.capacity, type) == 1 then -- else nobody will ask, or take the note away
                redis.call("HSET", key.ahead, type, worker)
            end
        end
    end
end

-- `worker` has nothing to do for its `free` slots: asks who took jobs of its `types` ahead last for as many of those.
-- They come back through `release`, and are placed again.
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
