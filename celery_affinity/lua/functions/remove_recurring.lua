-- remove_recurring: stops recurring calls for an operator, or because an app.conf no longer declares them. In the
-- second case, calls declared since by another app or at run time are kept.
--
-- Returns the number of stopped recurring calls.
-- Cost: O(names), limited by the caller.
function functions.remove_recurring(ARGV)
    local app = ARGV[1] -- the app whose app.conf no longer declares them, encoded; "" for an operator
    -- ARGV[2..]: names

    local stopped = 0
    for i = 2, #ARGV do
        local name = ARGV[i]
        if app ~= "" then
            redis.call("HDEL", key.recurring_of(app), name)
        end
        local its_app, type, merge_key, task =
            unpack(redis.call("HMGET", key.recurring_call(name), "app", "type", "merge", "task"))
        if app == "" or its_app == app then
            stopped = stopped + redis.call("UNLINK", key.recurring_call(name))
            redis.call("UNLINK", key.signature(name))
            redis.call("ZREM", key.recurring, name)
            recurring.remove_name(recurring.place(type, merge_key, task), name)
        end
    end
    return stopped
end
