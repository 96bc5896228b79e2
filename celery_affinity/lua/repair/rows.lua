-- repair_rows: the hashes of workers, one by one.
repair_rows.TYPES = 7 -- position in a row of `row_of`, after those of a worker's row

-- RETURNS the ids of all workers of which anything is known, each once.
function repair_rows.all_workers()
    local ids, seen = {}, {}
    for _, some in ipairs({
        redis.call("ZRANGE", key.beats, 0, -1), redis.call("ZRANGE", key.joined, 0, -1), redis.call("HVALS", key.names),
    }) do
        for _, id in ipairs(some) do
            if not seen[id] then
                ids[#ids + 1], seen[id] = id, true
            end
        end
    end
    return ids
end

-- RETURNS a worker's row, then its types; nil if these are not known. A spoiled hash is set aside.
function repair_rows.row_of(worker)
    if not sound.has_type(key.worker(worker), "hash") then
        return nil
    end
    local row = free_slots.row(worker, "types")
    local has_numbers = sound.is_whole(row[free_slots.SLOTS]) and sound.is_whole(row[free_slots.OTHER])
    if has_numbers and row[free_slots.PROFILE] and row[free_slots.ACCEPTING] and row[repair_rows.TYPES] then
        return row
    end
    if row[free_slots.ACCEPTING] ~= "0" then -- a worker whose jobs are being recovered goes without
        sound.set_aside(key.worker(worker))
    end
    return nil
end

-- Forgets a worker of which no row is left, unless it holds something. The worker joins again; or the jobs that it
-- holds come back when the worker has been silent for too long.
function repair_rows.forget_unless_it_holds_something(worker)
    if redis.call("EXISTS", key.claims(worker)) == 1 then
        if not redis.call("ZSCORE", key.beats, worker) then
            redis.call("ZADD", key.beats, call.now, worker)
        end
        return
    end
    local was_there = redis.call("ZREM", key.beats, worker) + redis.call("ZREM", key.joined, worker)
    sound.keep_fields(key.names, function(each)
        return each ~= worker
    end)
    if was_there > 0 then
        spoiled.record("worker " .. worker .. ", of which only the name was left")
    end
end
