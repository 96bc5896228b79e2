-- values: helpers for Redis replies and hashes, long argument lists, and texts.

-- flat: converts Redis replies of the form member, value, member, value, ... (a hash, or a sorted set with scores).

-- Returns the members in their order.
function flat.members(list)
    local members = {}
    for i = 1, #list, 2 do
        members[#members + 1] = list[i]
    end
    return members
end

-- Returns a table: member -> value.
function flat.values(list)
    local values = {}
    for i = 1, #list, 2 do
        values[list[i]] = list[i + 1]
    end
    return values
end

-- hash: fields of a hash.

-- Returns the values of `fields`, a list of any length, in the hash `name`: false for missing fields.
function hash.read(name, fields)
    if #fields == 0 then
        return {}
    elseif #fields <= protocol.MAX_UNPACKED then
        return redis.call("HMGET", name, unpack(fields))
    end
    local values = {}
    for first = 1, #fields, protocol.MAX_UNPACKED do
        local last = math.min(first + protocol.MAX_UNPACKED - 1, #fields)
        for _, value in ipairs(redis.call("HMGET", name, unpack(fields, first, last))) do
            values[#values + 1] = value
        end
    end
    return values
end

-- Sets a field of the hash `name` to `value`, or deletes the field if `value` is false or nil.
function hash.write(name, field, value)
    if value then
        redis.call("HSET", name, field, value)
    else
        redis.call("HDEL", name, field)
    end
end

-- chunked: Redis commands with more values than Lua's `unpack` can pass in one call.

-- Runs `command` on the Redis key `name` with all `values`, in chunks. Returns the sum of the replies.
function chunked.call(command, name, values, option)
    local sum = 0
    for first = 1, #values, protocol.MAX_UNPACKED do
        local last = math.min(first + protocol.MAX_UNPACKED - 1, #values)
        if option then
            redis.call(command, name, option, unpack(values, first, last))
        else
            sum = sum + redis.call(command, name, unpack(values, first, last))
        end
    end
    return sum
end

-- texts: strings that contain tokens separated by spaces, and patterns.

-- Returns the number of tokens in `text`; 0 if `text` is nil or false.
function texts.number_of_words(text)
    return select(2, string.gsub(text or "", "%S+", ""))
end

-- Returns true if `word` is a token of `text`, which can be nil or false.
function texts.has_word(text, word)
    return string.find(" " .. (text or "") .. " ", " " .. word .. " ", 1, true) ~= nil
end

-- Returns a counter field of a hash as a number, or 0 if the field is missing or is not a valid count.
function texts.count(value)
    return value and #value <= 9 and tonumber(string.match(value, "^%d+$")) or 0
end

-- Returns `word` percent-decoded.
function texts.decoded(word)
    return (string.gsub(word, "%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

-- Returns true if `name` matches `pattern`, where "*" matches any string.
function texts.matches(pattern, name)
    local lua_pattern = string.gsub(string.gsub(pattern, "[-.%%]", "%%%0"), "%*", ".*")
    return string.find(name, "^" .. lua_pattern .. "$") ~= nil
end

-- utf8: checks human-readable names, such as task names.

-- Returns true if `name` is valid UTF-8. Each valid sequence is replaced by "?", not removed: the bytes before and
-- after it must not form another sequence.
function utf8.is_good(name)
    for _, sequence in ipairs({
        "[\194-\223][\128-\191]", "\224[\160-\191][\128-\191]", "\237[\128-\159][\128-\191]",
        "[\225-\236\238\239][\128-\191][\128-\191]", "\240[\144-\191][\128-\191][\128-\191]",
        "[\241-\243][\128-\191][\128-\191][\128-\191]", "\244[\128-\143][\128-\191][\128-\191]",
    }) do
        name = string.gsub(name, sequence, "?")
    end
    return not string.find(name, "[\128-\255]")
end
