-- key_rows: what is written of a key and of its jobs, read once in a call.

-- RETURNS what this call has read of keys: known: key -> as `read` returns it, with what was written since; rules,
-- task: job id -> its rules, and the name of its task; are_some_paused: whether any pause is in force, once read;
-- patience_us: of `key_turns`, once read; left_to_open, left_to_close: sub-lanes that this call may still change;
-- is_unfinished: whether a key has more than these, so that a tick goes on with it.
function key_rows.of_call()
    if not call.keys then
        call.keys = {
            known = {}, rules = {}, task = {}, is_unfinished = false,
            left_to_open = protocol.MOST_OPENED, left_to_close = 2 * protocol.MOST_OPENED,
        }
    end
    return call.keys
end

-- RETURNS the key of job `id`, the limit or rate that it states, and " order=1" if its retry goes first; nil if the
-- job's row does not say: then the job is as one without rules.
function key_rows.rules_of(id)
    local keys = key_rows.of_call()
    if not keys.rules[id] then
        local rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
        keys.rules[id], keys.task[id] = rules, name or ""
    end
    local rules = keys.rules[id]
    if rules then
        return string.match(rules, "key=(%S+) %l+=(%S+)(.*)$")
    end
end

-- Keeps what the row of job `id` says, so that `rules_of` does not read it.
function key_rows.know(id, rules, name)
    local keys = key_rows.of_call()
    keys.rules[id], keys.task[id] = rules, name or ""
end

-- RETURNS what is known of a key, read once in a call. sublanes: "type lane" -> a table: type, lane, id and enqueue
-- time of its first job, the id of the job that stands in the lane ("" for none), and whether that is to be written;
-- stated: task -> limit or rate; retry: the job that the key is kept for; turn: the type that it is kept for, and
-- turn_began, turn_ends: since and until when, µs; had: type -> when it got the key last, µs; is_paused; and held: how
-- many jobs hold it.
function key_rows.read(its_key)
    local keys = key_rows.of_call()
    local found = keys.known[its_key]
    if not found then
        if keys.are_some_paused == nil then
            keys.are_some_paused = redis.call("EXISTS", key.pauses) == 1
        end
        found = {
            sublanes = {}, stated = {}, had = {}, held = redis.call("ZCARD", key.held(its_key)),
            is_paused = keys.are_some_paused and redis.call("HEXISTS", key.pauses, "key:" .. its_key) == 1,
        }
        local fields = redis.call("HGETALL", key.of_key(its_key))
        for i = 1, #fields, 2 do
            local name, value = fields[i], fields[i + 1]
            local type, lane = string.match(name, "^(%S+) (%S+)$")
            if type then
                local enqueued, first, standing = string.match(value, "^(%S+) (%S+) ?(%S*)$")
                found.sublanes[name] = {
                    type = type, lane = lane, enqueued = enqueued, first = first, standing = standing,
                }
                found.waits = true
            elseif name == "retry" then
                found.retry = value
            elseif name == "turn" then
                found.turn, found.turn_began, found.turn_ends = string.match(value, "^(%S+) (%d+) (%d+)$")
            elseif string.sub(name, 1, 1) == "@" then
                found.had[string.sub(name, 2)] = tonumber(value)
            else
                found.stated[name] = value
            end
        end
        keys.known[its_key] = found
    end
    return found
end

-- Writes what has changed of a key: its sub-lanes.
function key_rows.write_sublanes(its_key, its)
    local fields = {}
    for name, sublane in pairs(its.sublanes) do
        if sublane.is_changed then
            local text = sublane.enqueued .. " " .. sublane.first
            fields[#fields + 1], fields[#fields + 2] = name, sublane.standing == "" and text
                or text .. " " .. sublane.standing
            sublane.is_changed = false
        end
        if #fields >= protocol.MOST_UNPACKED then
            redis.call("HSET", key.of_key(its_key), unpack(fields))
            fields = {}
        end
    end
    if #fields > 0 then
        redis.call("HSET", key.of_key(its_key), unpack(fields))
    end
end

-- Ends that a key is kept, for a "retry" or as the "turn" of a type. The next tick fills what others gain, of any type:
-- this script may fill no slots.
function key_rows.keep_for_nobody(its_key, its, what)
    redis.call("HDEL", key.of_key(its_key), what)
    its[what] = nil
    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
end
