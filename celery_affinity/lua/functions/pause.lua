-- pause: no job of a type, of a key, or of any type starts until `resume`, or until the pause ends. What waits goes on
-- waiting, and so does what is published; what runs goes on running. Signs recall jobs that workers have not started
-- (`limit_changes.put_signs`).
-- RETURNS 1 if it was not paused before.
-- Cost: O(1) in jobs; of a key that of its sub-lanes. The next ticks put the signs for more than MOST_SIGNED workers.
function functions.pause(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"
    local for_us = ARGV[2] -- "" for a pause without an end
    local why = ARGV[3] -- in words, for whoever asks

    local is_new = redis.call("HEXISTS", key.pauses, what) == 0
    local until_us = for_us ~= "" and call.text(call.now_us + tonumber(for_us)) or "0"
    if for_us ~= "" then
        redis.call("ZADD", key.pause_ends, until_us, what)
    else
        redis.call("ZREM", key.pause_ends, what)
    end
    limit_changes.pause(what, call.now .. " " .. until_us .. " " .. why)
    if limit_changes.put_signs() then
        workers.have_one_tick()
    end
    return is_new and 1 or 0
end
