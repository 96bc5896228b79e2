-- batch_calls: a page of the calls of a batch that are to get its result. The primary, whose message the worker has, is
-- none of them.
-- RETURNS {after, published, id, task id, published, message, ...}; after: the argument of the next call, -1 if these
-- are all. published: when a call was published, µs, a retry as its first try was; first that of the primary. message:
-- "" if it is gone. {} if the batch is not the caller's to tell.
-- Cost: O(calls returned) and their bytes, at most some MB.
function functions.batch_calls(ARGV)
    local batch = ARGV[1] -- id
    local fence = ARGV[2] -- number of the caller's claim of the batch; "" for a batch that is untold
    local after = ARGV[3] -- what the call before returned; 0 for the first one
    local most = ARGV[4] -- calls to look at

    if not batches.is_its_own(batch, fence) then
        return {}
    end
    local primary = redis.call("HGET", key.job(batch), "primary")
    local page = redis.call("ZRANGEBYSCORE", key.callers(batch), "(" .. after, "+inf", "WITHSCORES", "LIMIT", 0, most)
    local reply = { #page == 2 * tonumber(most) and tonumber(page[#page]) or -1, (batch_calls.published_us(primary or "")) }
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
