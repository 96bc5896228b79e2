-- recurring_names: the recurring calls that are alike in what they match.

-- RETURNS the field of hash `recurs` for calls that match. The name of the task, which may be any text, is last.
function recurring_names.place(type, merge_key, task)
    return type and merge_key and task and type .. " " .. merge_key .. " " .. task
end

-- Adds a name to those at `place`. RETURNS whether there was room.
function recurring_names.add(place, name)
    local names = redis.call("HGET", key.recurs, place)
    if names and select(2, string.gsub(names, "%S+", "")) >= protocol.MOST_ALIKE then
        return false
    end
    redis.call("HSET", key.recurs, place, names and names .. " " .. name or name)
    return true
end

-- Removes a name from those at `place`.
function recurring_names.remove(place, name)
    local left = ""
    for each in string.gmatch(place and redis.call("HGET", key.recurs, place) or "", "%S+") do
        if each ~= name then
            left = left == "" and each or left .. " " .. each
        end
    end
    if left ~= "" then
        redis.call("HSET", key.recurs, place, left)
    elseif place then
        redis.call("HDEL", key.recurs, place)
    end
end
