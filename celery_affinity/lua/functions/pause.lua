-- pause: jobs of a type, of a key or of any type do not start until `resume` or until the pause ends. Waiting and newly
-- published jobs keep waiting, and running jobs keep running. Control messages recall jobs that workers have not
-- started (`limit_changes.put_signs`).
--
-- Returns 1 if the target was not paused before, or 0.
-- Cost: O(1) in jobs; for a key, O(1) per sub-lane. If more than MOST_SIGNED workers must recall jobs, the next ticks
-- send the other messages.
function functions.pause(ARGV)
    local what = ARGV[1] -- "type:T", "key:K", encoded, or "*"
    local for_us = ARGV[2] -- duration in µs, or "" without an end
    local why = ARGV[3] -- reason, for display

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
