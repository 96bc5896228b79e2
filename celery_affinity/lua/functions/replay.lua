-- replay: dead -> pending, for an operator. The jobs are queued as if they were published now, with no deliveries.
-- Stamps and expiry are removed, because they would end the jobs. A job without a message stays dead.
--
-- Returns {unfilled, left, replayed id, ...}. unfilled: see `fill`. left: number of ids, the last ones, that the caller
-- must pass to the next invocation.
-- Cost: at most MOST_MOVES jobs per invocation, limited by the caller, and MOST_SHARED calls of batches.
function functions.replay(ARGV)
    -- ARGV[1..]: job ids
    local types, replayed = {}, {}
    local calls_remaining, remaining = protocol.MOST_SHARED, 0
    for nth, id in ipairs(ARGV) do
        local state, type, lane, stamps, expires, reason =
            unpack(redis.call("HMGET", key.job(id), "state", "type", "lane", "stamps", "expires", "reason"))
        local rule = hooks.of(id)
        local is_ready = state == "dead" and reason ~= "deleted" and corrupt.is_word(id)
            and corrupt.can_wait(type, lane, call.now, "0")
        if is_ready then
            local is_finished, number = rule.wait_again(id, calls_remaining)
            calls_remaining = calls_remaining - number
            if not is_finished then
                remaining = #ARGV - nth + 1
                break
            end
        end
        if is_ready and (rule.STANDS_FOR_CALLS or redis.call("EXISTS", key.message(id)) == 1) then
            redis.call("ZREM", key.dead, id)
            redis.call("ZREM", key.unreported, id)
            job_index.fade(id, stamps, expires)
            redis.call("HDEL", key.job(id), "reason", "why", "ended", "acked", "left", "tries", "expires",
                "stamps", "deliveries", "requeues", "pauses", "rank")
            redis.call("HSET", key.job(id), "state", "pending", "enqueued", call.now)
            hooks.wait(id, type, lane, call.now)
            types[#types + 1] = type
            replayed[#replayed + 1] = id
        end
    end
    return { fill.fill(types, "", settings_in_force.read(), slot_choice.view())[1], remaining, unpack(replayed) }
end
