-- remove_recurring: recurring calls are made no more, because a person asks for it, or because an app.conf declares them no more;
-- then those that another app, or somebody at run time, has declared since go on.
-- RETURNS the number of recurring calls that stopped.
-- Cost: O(names), by the caller.
function functions.remove_recurring(ARGV)
    local app = ARGV[1] -- the app whose app.conf has them no more, encoded; "" for a person
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
