-- spoiled: keys, members and fields that another program deleted or overwrote. An arrow that finds one moves it out of
-- the way, records that, and goes on; a dispatcher logs the records (`repair`).
-- Ids, types, and names of workers and keys are joined with blanks into texts: heads, the facts of a claim, signs,
-- fields of hashes. One that was read from a sorted set or a hash passes `spoiled.is_word` before. The first jobs that
-- wait somewhere are read with `spoiled.first_of`.
local PAGE, MOST_PAGES = 100, 10 -- members that `first_of` reads at once, and how often, where some are damaged

-- RETURNS whether `text` is one word: printable ASCII without blanks, as all ids, types and names are.
function spoiled.is_word(text)
    return #text <= protocol.LONGEST_NAME and string.find(text, "^[!-~]+$") ~= nil
end

-- RETURNS `what` as one line of the log: printable ASCII, MOST_SPOILED_BYTES at most.
function spoiled.line(what)
    return (string.gsub(string.sub(what, 1, protocol.MOST_SPOILED_BYTES), "[^ -~]", "?"))
end

-- RETURNS the record of a key that is set aside.
function spoiled.what_was_set_aside(name)
    return name .. ", which held what it must not: it is " .. key.set_aside(string.sub(name, #key.base + 1)) .. " now"
end

-- Renames a key that holds what it must not. The key with the new name expires.
function spoiled.set_aside(name)
    local aside = key.set_aside(string.sub(name, #key.base + 1))
    redis.call("RENAME", name, aside)
    redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)
end

-- Moves the list of records out of the way if it is no list, so that a repair can record anything. RETURNS whether the
-- key can be used now: not if this user may not rename it.
function spoiled.is_ready()
    local its_kind = redis.call("TYPE", key.spoiled).ok
    if its_kind == "none" or its_kind == "list" then
        return true
    end
    local is_done = pcall(spoiled.set_aside, key.spoiled)
    if is_done then
        spoiled.record(spoiled.what_was_set_aside(key.spoiled))
    end
    return is_done
end

-- Records what was found, for a dispatcher's log. An arrow never fails because of that.
function spoiled.record(what)
    local reply = redis.pcall("LPUSH", key.spoiled, spoiled.line(what))
    if type(reply) == "number" then
        redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)
    elseif string.find(reply.err, "WRONGTYPE", 1, true) and spoiled.is_ready() then
        redis.call("LPUSH", key.spoiled, spoiled.line(what))
    end
end

-- RETURNS the records, as lines of the log, and deletes them.
function spoiled.take()
    local lines = spoiled.is_ready() and redis.call("LRANGE", key.spoiled, 0, protocol.MOST_SPOILED - 1) or {}
    for nth, what in ipairs(lines) do
        lines[nth] = spoiled.line(what)
    end
    if #lines > 0 then
        redis.call("UNLINK", key.spoiled)
        redis.pcall("HINCRBY", key.counters, "spoiled", #lines)
    end
    return lines
end

-- Removes a member that does not belong into the sorted set `name`.
function spoiled.remove(name, member)
    redis.call("ZREM", name, member)
    spoiled.record(string.sub(member, 1, 100) .. " of " .. name .. ", which is no entry: it is removed")
end

-- RETURNS whether `id` and `time`, a member of a sorted set and its score, can be a job that waits since that time, µs.
function spoiled.is_entry(id, time)
    return string.find(time, "^%d+$") ~= nil and spoiled.is_word(id)
end

-- RETURNS the first `number` jobs of sorted set `name`, in which jobs wait, and their enqueue times, as ZRANGE does.
-- A member that is no id is removed; a job whose score is no time waits since now.
function spoiled.first_of(name, number)
    local most = number
    for _ = 1, MOST_PAGES do
        local found, are_good = redis.call("ZRANGE", name, 0, most - 1, "WITHSCORES"), true
        for i = 1, #found, 2 do
            local id, time = found[i], found[i + 1]
            if not spoiled.is_word(id) then
                spoiled.remove(name, id)
                are_good = false
            elseif not string.find(time, "^%d+$") then
                redis.call("ZADD", name, call.now, id)
                spoiled.record("job " .. id .. " of " .. name .. ", whose time was " .. time)
                are_good = false
            end
        end
        if are_good then
            return { unpack(found, 1, 2 * number) }
        end
        most = PAGE
    end
    return {}
end

-- RETURNS whether a text is a whole number that no sum makes too large.
local function is_number(text)
    return #text <= protocol.LONGEST_NUMBER and string.find(text, "^%d+$") ~= nil
end

-- RETURNS whether a job can wait whose row says this. The fields of a deleted row are false.
function spoiled.can_wait(type, lane, enqueued, deliveries)
    return type and job_check.is_type(type) and lanes.is_one(lane) and is_number(enqueued or "")
        and is_number(deliveries or "0")
end
