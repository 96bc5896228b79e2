-- hash: fields of a hash that are there only while they say something.

-- Writes `value` into a field of the hash `name`; without a value, false or nil, deletes the field.
function hash.write(name, field, value)
    if value then
        redis.call("HSET", name, field, value)
    else
        redis.call("HDEL", name, field)
    end
end
