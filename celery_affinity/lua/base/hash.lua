-- hash: optional fields of a hash. A field without a value is deleted.

-- Sets a field of the hash `name` to `value`, or deletes the field if `value` is false or nil.
function hash.write(name, field, value)
    if value then
        redis.call("HSET", name, field, value)
    else
        redis.call("HDEL", name, field)
    end
end
