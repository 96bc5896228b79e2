-- repair_recurring: fixes data derived from the hashes of recurring calls: their due times, and the calls that postpone
-- them.

-- Returns the match of calls that postpone a recurring call, as in key `recurs`. Returns nil if the recurring call is
-- invalid: its hash lacks fields or an interval, or its signature is missing.
local function match_of(name)
    if not rebuild.exists(key.recurring_call(name), "hash") or not rebuild.exists(key.signature(name), "string") then
        return nil
    end
    local type, merge_key, task, stale, since =
        unpack(redis.call("HMGET", key.recurring_call(name), "type", "merge", "task", "stale", "since"))
    local is_valid = type and string.find(type, "^%S+$") and merge_key and string.find(merge_key, "^%S+$")
        and rebuild.whole(stale) and tonumber(stale) > 0 and (since == "enqueue" or since == "end")
    return is_valid and recurring.place(type, merge_key, task) or nil
end

-- Fixes the time and the match of a recurring call, or deletes an invalid one. Returns the result of `match_of`.
function repair_recurring.fix(name)
    local match = match_of(name)
    if not match then
        rebuild.one("zset", key.recurring, name, nil)
        if redis.call("EXISTS", key.recurring_call(name), key.signature(name)) > 0
            and rebuild.found("recurring call " .. name) then
            redis.call("UNLINK", key.recurring_call(name), key.signature(name))
        end
        return nil
    end
    local stale, due, is_suspended = unpack(redis.call("HMGET", key.recurring_call(name), "stale", "due", "suspended"))
    local valid_due = rebuild.whole(due) and tonumber(due) < 2e18 and due or call.text(call.now_us + tonumber(stale))
    rebuild.each({
        { "hash", key.recurring_call(name), "due", valid_due },
        { "zset", key.recurring, name, function(stored)
            local time = tonumber(stored)
            local is_valid = time and tonumber(valid_due) <= time and time < 2e18 -- later: it was handed out
            return is_suspended and "inf" or is_valid and stored or valid_due
        end },
        { "hash", key.recurring_matches, match, function(names)
            local listed = workers.split(names)
            local is_listed = texts.has_word(names, name)
            listed[#listed + 1] = not is_listed and #listed < protocol.MOST_ALIKE and name or nil
            return table.concat(listed, " ")
        end },
    })
    return match
end

-- Fixes the recurring calls that calls with this `match` postpone, and their list.
function repair_recurring.fix_place(match)
    rebuild.one("hash", key.recurring_matches, match, function(names)
        local remaining = {}
        for _, name in ipairs(workers.split(names)) do
            remaining[#remaining + 1] = repair_recurring.fix(name) == match and name or nil
        end
        return #remaining > 0 and table.concat(remaining, " ")
    end)
end
