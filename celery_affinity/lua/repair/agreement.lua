-- agreement: whether sums agree, with each other and with a worker. Counting all workers would take too long while, as
-- mostly, nothing is wrong.

-- RETURNS the values of a hash as numbers, and their sum; nil if one cannot be a number of slots or workers.
local function numbers_of(name)
    local numbers, sum = {}, 0
    local values = redis.call("HGETALL", name)
    for i = 1, #values, 2 do
        local field, value = values[i], values[i + 1]
        if not sound.is_whole(value) or tonumber(value) < 0 then
            return nil
        end
        numbers[field] = tonumber(value)
        sum = sum + numbers[field]
    end
    return numbers, sum
end

-- RETURNS whether what is known of all workers together agrees with itself.
function agreement.of_sums()
    local members, number = numbers_of(key.members)
    local slots_of = numbers_of(key.slots)
    local free_in = numbers_of(key.free_slots)
    local capacity, in_all = numbers_of(key.capacity)
    local joined = redis.call("ZCARD", key.joined)
    if not (members and slots_of and free_in and capacity) or number ~= joined
        or redis.call("ZCARD", key.beats) ~= joined or redis.call("HLEN", key.names) > joined then
        return false
    end
    local profiles = redis.call("HGETALL", key.profiles)
    for i = 1, #profiles, 2 do
        local profile, types = profiles[i], workers.split(profiles[i + 1])
        local free = free_in[profile] or 0
        local with_free = sound.has_type(key.free(profile), "zset") and redis.call("ZCARD", key.free(profile)) or 0
        if not members[profile] or not slots_of[profile] or with_free > free or (with_free == 0 and free > 0) then
            return false
        end
        for _, type in ipairs(types) do
            in_all = in_all - slots_of[profile]
            if not sound.has_type(key.serving(type), "zset")
                or tonumber(redis.call("ZSCORE", key.serving(type), profile) or 0) ~= #types then
                return false
            end
        end
    end
    return in_all == 0
end

-- RETURNS whether what is known of `worker` agrees with what is known of all.
function agreement.of_worker(worker)
    local row = repair_rows.row_of(worker)
    if not row then
        return false
    end
    local profile, left, was = free_slots.count(worker, row)
    local is_free = redis.call("ZSCORE", key.free(profile), worker) ~= false
    return left == was and is_free == (left > 0) and redis.call("HGET", key.profiles, profile) == row[repair_rows.TYPES]
        and redis.call("ZSCORE", key.beats, worker) ~= false
end
