-- corrupt: keys, members and fields that another client deleted or overwrote. A server function that finds corrupt data
-- quarantines it, records a finding and continues; a dispatcher logs the findings (`repair`).
-- Ids, types, worker names and key names are joined with spaces: in heads, claims, control messages and hash fields.
-- A name read from a sorted set or a hash is therefore checked with `corrupt.is_word` before it is joined. Waiting jobs
-- are read with `corrupt.first_of`.
local PAGE, MOST_PAGES = 100, 10 -- if some members are damaged: members per read of `first_of`, and number of reads

-- Returns true if `text` is a word: printable ASCII without spaces, like every valid id, type and name.
function corrupt.is_word(text)
    return #text <= protocol.LONGEST_NAME and string.find(text, "^[!-~]+$") ~= nil
end

-- Returns `what` as one log line: printable ASCII, up to MOST_SPOILED_BYTES.
function corrupt.line(what)
    return (string.gsub(string.sub(what, 1, protocol.MOST_SPOILED_BYTES), "[^ -~]", "?"))
end

-- Returns the finding for a quarantined key.
function corrupt.quarantined(name)
    return name .. ", which held what it must not: it is " .. key.set_aside(string.sub(name, #key.base + 1)) .. " now"
end

-- Quarantines a corrupt key: renames it, and lets the renamed key expire.
function corrupt.quarantine(name)
    local aside = key.set_aside(string.sub(name, #key.base + 1))
    redis.call("RENAME", name, aside)
    redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)
end

-- Quarantines the key of the findings if it is not a list, so that findings can be recorded. Returns true if the key is
-- usable, or false if this user is not allowed to rename it.
function corrupt.is_ready()
    local kind = redis.call("TYPE", key.damage_log).ok
    if kind == "none" or kind == "list" then
        return true
    end
    local is_done = pcall(corrupt.quarantine, key.damage_log)
    if is_done then
        corrupt.record(corrupt.quarantined(key.damage_log))
    end
    return is_done
end

-- Records a finding for a dispatcher's log. An error while recording does not fail the server function: if the key of
-- the findings is corrupt, the finding is dropped, because a producer has no right to quarantine keys. The next repair
-- does that.
function corrupt.record(what)
    if type(redis.pcall("LPUSH", key.damage_log, corrupt.line(what))) == "number" then
        redis.call("LTRIM", key.damage_log, 0, protocol.MOST_SPOILED - 1)
    end
end

-- Returns the findings as log lines, and deletes them.
function corrupt.take()
    local lines = corrupt.is_ready() and redis.call("LRANGE", key.damage_log, 0, protocol.MOST_SPOILED - 1) or {}
    for nth, what in ipairs(lines) do
        lines[nth] = corrupt.line(what)
    end
    if #lines > 0 then
        redis.call("UNLINK", key.damage_log)
        redis.pcall("HINCRBY", key.counters, "spoiled", #lines)
    end
    return lines
end

-- Removes an invalid member from the sorted set `name`.
function corrupt.remove(name, member)
    redis.call("ZREM", name, member)
    corrupt.record(string.sub(member, 1, 100) .. " of " .. name .. ", which is no entry: it is removed")
end

-- Returns true if `id` and `time` (member and score of a sorted set) are a valid id and a valid enqueue time in µs.
function corrupt.is_entry(id, time)
    return string.find(time, "^%d+$") ~= nil and corrupt.is_word(id)
end

-- Returns the first `number` jobs in the sorted set `name` of waiting jobs, with their enqueue times, like ZRANGE.
-- Members that are not ids are removed. A score that is not a time is replaced by the current time.
function corrupt.first_of(name, number)
    local most = number
    for _ = 1, MOST_PAGES do
        local entries, are_valid = redis.call("ZRANGE", name, 0, most - 1, "WITHSCORES"), true
        for i = 1, #entries, 2 do
            local id, time = entries[i], entries[i + 1]
            if not corrupt.is_word(id) then
                corrupt.remove(name, id)
                are_valid = false
            elseif not string.find(time, "^%d+$") then
                redis.call("ZADD", name, call.now, id)
                corrupt.record("job " .. id .. " of " .. name .. ", whose time was " .. time)
                are_valid = false
            end
        end
        if are_valid then
            return { unpack(entries, 1, 2 * number) }
        end
        most = PAGE
    end
    return {}
end

-- Returns true if a string is a whole number small enough for sums.
local function is_number(text)
    return #text <= protocol.LONGEST_NUMBER and string.find(text, "^%d+$") ~= nil
end

-- Returns true if the job hash has valid fields, so that the job can be queued. The fields of a deleted hash are false.
function corrupt.can_wait(type, lane, enqueued, deliveries)
    return type and validate.is_type(type) and lanes.is_one(lane) and is_number(enqueued or "")
        and is_number(deliveries or "0")
end
