-- repair_recurring: fixes recurring calls, some in a call.
local MOST_RECURRING = 50 -- of one call

-- RETURNS what calls match that put a recurring call off, as key `recurs` has it; nil if the row does not say, or says
-- no interval.
local function place_of(name)
    if not sound.has_type(key.recurring_call(name), "hash") then
        return nil
    end
    local type, merge_key, task, stale, since =
        unpack(redis.call("HMGET", key.recurring_call(name), "type", "merge", "task", "stale", "since"))
    local is_good = type and string.find(type, "^%S+$") and merge_key and string.find(merge_key, "^%S+$")
        and sound.is_whole(stale) and tonumber(stale) > 0 and (since == "enqueue" or since == "end")
    return is_good and recurring.place(type, merge_key, task) or nil
end

-- Has a recurring call be due, if its time was lost, and be found by calls that match. RETURNS whether it is one.
local function fix_recurring_call(name)
    local place = place_of(name)
    if not (sound.has_type(key.signature(name), "string") and place) then
        redis.call("ZREM", key.recurring, name)
        if redis.call("UNLINK", key.recurring_call(name), key.signature(name)) > 0 then
            spoiled.record("recurring call " .. name)
        end
        return false
    end
    local stale, due, is_suspended = unpack(redis.call("HMGET", key.recurring_call(name), "stale", "due", "suspended"))
    local time = tonumber(redis.call("ZSCORE", key.recurring, name) or nil)
    local is_time = sound.is_whole(due) and tonumber(due) < 2e18
    if not is_time or (not is_suspended and (not time or time < tonumber(due) or time > 2e18)) then
        recurring.set_due(name, is_time and tonumber(due) or call.now_us + tonumber(stale), is_suspended)
        spoiled.record("the time of recurring call " .. name)
    end
    if is_suspended and time ~= math.huge then
        redis.call("ZADD", key.recurring, "inf", name)
        spoiled.record("recurring call " .. name .. ", which is suspended")
    end
    local names = redis.call("HGET", key.recurs, place) or ""
    if not string.find(" " .. names .. " ", " " .. name .. " ", 1, true) and recurring.add_name(place, name) then
        spoiled.record("what puts off recurring call " .. name)
    end
    return true
end

-- Fixes recurring calls from the position `from` on. RETURNS the position to go on from, nil if those were all.
function repair_recurring.fix(from)
    local names = redis.call("ZRANGE", key.recurring, from, from + MOST_RECURRING - 1)
    local number = 0
    for _, name in ipairs(names) do
        number = number + (fix_recurring_call(name) and 1 or 0)
    end
    return #names == MOST_RECURRING and from + number or nil
end

-- Fixes what puts recurring calls off, and the calls that are found there. RETURNS the cursor to go on with, or nil.
function repair_recurring.fix_places(cursor)
    local page = redis.call("HSCAN", key.recurs, call.text(cursor), "COUNT", MOST_RECURRING)
    for nth = 1, #page[2], 2 do
        local place = page[2][nth]
        for name in string.gmatch(page[2][nth + 1], "%S+") do
            if place_of(name) ~= place or redis.call("EXISTS", key.signature(name)) == 0 then
                recurring.remove_name(place, name)
                spoiled.record("recurring call " .. name .. ", of which only the name was left")
            elseif not redis.call("ZSCORE", key.recurring, name) then
                fix_recurring_call(name)
            end
        end
        if not string.find(page[2][nth + 1], "%S") then
            redis.call("HDEL", key.recurs, place)
            spoiled.record("what puts off recurring calls that there are not")
        end
    end
    return page[1] ~= "0" and tonumber(page[1]) or nil
end
