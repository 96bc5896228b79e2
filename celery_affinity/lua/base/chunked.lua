-- chunked: commands with more values than Lua's `unpack` passes at once.

-- Calls `command` with the Redis key `name` and all `values`, some at a time. RETURNS the sum of the replies.
function chunked.call(command, name, values)
    local sum = 0
    for first = 1, #values, protocol.MOST_UNPACKED do
        local last = math.min(first + protocol.MOST_UNPACKED - 1, #values)
        sum = sum + redis.call(command, name, unpack(values, first, last))
    end
    return sum
end
