-- sound: keys of another Redis type than they are to have, and fields that are no numbers.

-- Renames a key of another Redis type than it must have, and records that. The key with the new name expires.
function sound.set_aside(name)
    local aside = key.set_aside(string.sub(name, #key.base + 1))
    redis.call("RENAME", name, aside)
    redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)
    spoiled.record(name .. ", which held what it must not: it is " .. aside .. " now")
end

-- RETURNS whether a key exists and has the Redis type `kind`. A key of another type is set aside.
function sound.has_type(name, kind)
    local found = redis.call("TYPE", name).ok
    if found ~= "none" and found ~= kind then
        sound.set_aside(name)
    end
    return found == kind
end

function sound.is_whole(value)
    return value and #value <= protocol.LONGEST_NUMBER and string.find(value, "^%-?%d+$") ~= nil
end

function sound.is_number(value)
    local number = tonumber(value)
    return number and number == number and math.abs(number) ~= math.huge
end

-- Removes those fields of a hash for whose values `accepted` returns false.
function sound.keep_fields(name, accepted)
    local values = redis.call("HGETALL", name)
    for i = 1, #values, 2 do
        local field, value = values[i], values[i + 1]
        if not accepted(value, field) then
            redis.call("HDEL", name, field)
            spoiled.record(field .. " of " .. name .. ", which was " .. string.sub(value, 1, 100))
        end
    end
end
