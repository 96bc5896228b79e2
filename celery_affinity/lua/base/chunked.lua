-- chunked: Redis commands with more values than Lua's `unpack` can pass in one call.

-- Runs `command` on the Redis key `name` with all `values`, in chunks. Returns the sum of the replies.
function chunked.call(command, name, values)
    local sum = 0
    for first = 1, #values, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #values)
        sum = sum + redis.call(command, name, unpack(values, first, last))
    end
    return sum
end
