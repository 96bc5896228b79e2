-- declare_recurring: declares recurring calls, for an app.conf or at run time. The last declaration applies. An
-- unchanged declaration that an app.conf repeats has no effect.
--
-- Returns {{replaced, ...}, {refused, ...}}.
--   replaced: names of calls with a different earlier declaration by another app or at run time.
--   refused: names of calls that are not declared, because MOST_ALIKE other calls already match the same jobs.
-- Cost: O(calls); the caller limits their number and size.
local FIELDS = 7 -- per call

function functions.declare_recurring(ARGV)
    local app = ARGV[1] -- encoded; "" at run time
    -- ARGV[2..]: name, type, merge key, interval in µs, "enqueue" or "end", task name, signature, ...

    local replaced, refused = {}, {}

    local function declare(digest, name, type, merge_key, stale, since, task, signature)
        local row = key.recurring_call(name)
        local old_digest, old_app, old_type, old_key, old_task, old_stale, due, is_suspended =
            unpack(redis.call("HMGET", row, "digest", "app", "type", "merge", "task", "stale", "due", "suspended"))
        local place, old_place = recurring.place(type, merge_key, task), recurring.place(old_type, old_key, old_task)
        if place ~= old_place and not recurring.add_name(place, name) then
            refused[#refused + 1] = name
            return
        end
        if app ~= "" then
            redis.call("HSET", key.recurring_of(app), name, digest)
        end
        if old_digest and old_digest ~= digest and old_app ~= app then
            replaced[#replaced + 1] = name
        end
        redis.call("HSET", row, "type", type, "merge", merge_key, "stale", stale, "since", since, "task", task,
            "digest", digest, "app", app)
        redis.call("SET", key.signature(name), signature)
        if place == old_place and tonumber(due) and tonumber(old_stale) then
            if old_stale ~= stale then -- the call matches the same jobs, so its interval keeps its start
                local due_us = tonumber(due) - tonumber(old_stale) + tonumber(stale)
                recurring.set_due(name, math.max(call.now_us, due_us), is_suspended)
            end
            return
        end
        if place ~= old_place then
            recurring.remove_name(old_place, name)
        end
        redis.call("HDEL", row, "matched", "by", "made", "left", "left_at")
        if is_suspended then
            redis.call("ZADD", key.recurring, "inf", name)
        end
        recurring.set_due(name, call.now_us + tonumber(stale), is_suspended)
    end

    for first = 2, #ARGV, FIELDS do
        local name, type, merge_key, stale, since, task, signature = unpack(ARGV, first, first + FIELDS - 1)
        local digest =
            redis.sha1hex(type .. " " .. merge_key .. " " .. stale .. " " .. since .. " " .. task .. "\n" .. signature)
        if app == "" or redis.call("HGET", key.recurring_of(app), name) ~= digest then
            declare(digest, name, type, merge_key, stale, since, task, signature)
        end
    end
    return { replaced, refused }
end
