-- made_again: makes hashes and sorted sets say what was counted, with as few writes as it takes.
-- @include repair/types.lua

-- Makes a hash say what `counted` does. `may_lack`: whether a field that is missing says 0.
local function make_hash(name, counted, may_lack)
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

-- Makes a sorted set have the members of `wanted`: member -> score, or true if any score will do.
local function make_zset(name, wanted)
    has_type(name, "zset")
    local found, changed = {}, false
    local members = redis.call("ZRANGE", name, 0, -1, "WITHSCORES")
    for i = 1, #members, 2 do
        local member, score = members[i], tonumber(members[i + 1])
        found[member] = score
        if not wanted[member] then
            redis.call("ZREM", name, member)
            changed = true
        end
    end
    for member, score in pairs(wanted) do
        if not found[member] or (score ~= true and found[member] ~= score) then
            redis.call("ZADD", name, score == true and clock.now or score, member)
            changed = true
        end
    end
    if changed then
        spoiled.record(name .. ", made again")
    end
end
