-- made_again: makes hashes and sorted sets say what was counted, with as few writes as it takes.

-- Makes a hash say what `counted` does. `may_lack`: whether a field that is missing says 0.
function made_again.hash(name, counted, may_lack)
    local found, changed = {}, false
    local values = redis.call("HGETALL", name)
    for i = 1, #values, 2 do
        local field, value = values[i], values[i + 1]
        found[field] = value
        if counted[field] == nil then
            redis.call("HDEL", name, field)
            changed = true
        end
    end
    for field, value in pairs(counted) do
        value = tostring(value)
        if found[field] ~= value and not (may_lack and value == "0" and not found[field]) then
            redis.call("HSET", name, field, value)
            changed = true
        end
    end
    if changed then
        spoiled.record(name .. ", made again")
    end
end

-- Makes a sorted set have the members of `wanted`: member -> time, or true if any time will do.
function made_again.zset(name, wanted)
    sound.has_type(name, "zset")
    local found, changed = {}, false
    local members = redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    for i = 1, #members, 2 do
        local member, time = members[i], tonumber(members[i + 1])
        found[member] = time
        if not wanted[member] then
            redis.call("ZREM", name, member)
            changed = true
        end
    end
    for member, time in pairs(wanted) do
        if not found[member] or (time ~= true and found[member] ~= time) then
            redis.call("ZADD", name, time == true and call.now or time, member)
            changed = true
        end
    end
    if changed then
        spoiled.record(name .. ", made again")
    end
end
