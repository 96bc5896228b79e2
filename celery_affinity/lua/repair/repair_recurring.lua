-- repair_recurring: what follows from the rows of recurring calls: when they are due, and what puts them off.

-- RETURNS what calls match that put a recurring call off, as key `recurs` has it; nil if the call is none: its row does
-- not say, or says no interval, or nothing is left to be called.
local function place_of(name)
    if not rebuild.exists(key.recurring_call(name), "hash") or not rebuild.exists(key.signature(name), "string") then
        return nil
    end
    local type, merge_key, task, stale, since =
        unpack(redis.call("HMGET", key.recurring_call(name), "type", "merge", "task", "stale", "since"))
    local is_good = type and string.find(type, "^%S+$") and merge_key and string.find(merge_key, "^%S+$")
        and rebuild.whole(stale) and tonumber(stale) > 0 and (since == "enqueue" or since == "end")
    return is_good and recurring.place(type, merge_key, task) or nil
end

-- Fixes the time of a recurring call, and what puts it off. Forgets one that is none. RETURNS what `place_of` does.
function repair_recurring.fix(name)
    local place = place_of(name)
    if not place then
        rebuild.one("zset", key.recurring, name, nil)
        if redis.call("EXISTS", key.recurring_call(name), key.signature(name)) > 0
            and rebuild.found("recurring call " .. name) then
            redis.call("UNLINK", key.recurring_call(name), key.signature(name))
        end
        return nil
    end
    local stale, due, is_suspended = unpack(redis.call("HMGET", key.recurring_call(name), "stale", "due", "suspended"))
    local its_due = rebuild.whole(due) and tonumber(due) < 2e18 and due or call.text(call.now_us + tonumber(stale))
    rebuild.each({
        { "hash", key.recurring_call(name), "due", its_due },
        { "zset", key.recurring, name, function(found)
            local time = tonumber(found)
            local is_good = time and tonumber(its_due) <= time and time < 2e18 -- later: it was handed out
            return is_suspended and "inf" or is_good and found or its_due
        end },
        { "hash", key.recurs, place, function(names)
            local words = workers.split(names)
            local is_there = texts.has_word(names, name)
            words[#words + 1] = not is_there and #words < protocol.MOST_ALIKE and name or nil
            return table.concat(words, " ")
        end },
    })
    return place
end

-- Fixes what puts recurring calls off that calls at `place` match, and these recurring calls.
function repair_recurring.fix_place(place)
    rebuild.one("hash", key.recurs, place, function(names)
        local left = {}
        for _, name in ipairs(workers.split(names)) do
            left[#left + 1] = repair_recurring.fix(name) == place and name or nil
        end
        return #left > 0 and table.concat(left, " ")
    end)
end
