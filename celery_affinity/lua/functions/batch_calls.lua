-- batch_calls: returns one page of the batch's calls that still need its result. The primary is excluded, because its
-- worker reports it.
--
-- Returns {after, published, id, task id, published, message, ...}, or {} if another process must report the batch.
--   after: argument for the next page, or -1 after the last page.
--   published: publish time in µs; a retry keeps the time of its first attempt. The first one is the primary's.
--   message: "" if it was deleted.
-- Cost: O(calls returned) and their bytes, at most some MB.
function functions.batch_calls(ARGV)
    local batch = ARGV[1]
    local fence = ARGV[2] -- fencing token of the caller's claim; "" for an unreported batch
    local after = ARGV[3] -- `after` of the previous page, or 0
    local most = ARGV[4] -- maximum number of calls to read

    if not batches.is_its_own(batch, fence) then
        return {}
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    local page = redis.call("ZRANGEBYSCORE", key.callers(batch), "(" .. after, "+inf", "WITHSCORES", "LIMIT", 0, most)
    local next_cursor = #page == 2 * tonumber(most) and tonumber(page[#page]) or -1
    local reply = { next_cursor, (batch_calls.published_us(primary or "")) }
    local bytes = 0
    for i = 1, #page, 2 do
        local id = page[i]
        if id ~= primary then
            local message = redis.call("GET", key.message(id)) or ""
            if message ~= "" or not batch_calls.is_nothing(id, batch) then
                local published, task = batch_calls.published_us(id)
                reply[#reply + 1], reply[#reply + 2] = id, task
                reply[#reply + 1], reply[#reply + 2] = published, message
                bytes = bytes + #message
            end
        end
        if bytes > protocol.MOST_BYTES then
            reply[1] = tonumber(page[i + 1])
            break
        end
    end
    return reply
end
