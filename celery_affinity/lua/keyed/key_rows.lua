-- key_rows: what Redis says of a key and of the rules of its jobs, read once in a call of an arrow.

-- RETURNS a table with what this call has read. known: key -> what `read` returned, kept up to date with what the call
-- writes. rules, task: job id -> text of its rules, and name of its task. are_some_paused: whether anything is paused.
-- patience_us: see `key_turns`. left_to_open, left_to_close: sub-lanes that this call may still change.
-- is_unfinished: whether it may change fewer than it would have to.
function key_rows.of_call()
    if not call.keys then
        call.keys = {
            known = {}, rules = {}, task = {}, is_unfinished = false,
            left_to_open = protocol.MOST_OPENED, left_to_close = 2 * protocol.MOST_OPENED,
        }
    end
    return call.keys
end

-- Notes what the row of job `id` says, so that `rules_of` does not read it.
function key_rows.know(id, rules, name)
    local keys = key_rows.of_call()
    keys.rules[id], keys.task[id] = rules, name or ""
end

-- RETURNS the key of job `id`; the limit or rate that the job states; and " order=1" if its retry is to go before other
-- jobs of the key, else "". nil if somebody deleted the rules: then the job is as one without rules.
function key_rows.rules_of(id)
    local keys = key_rows.of_call()
    if not keys.rules[id] then
        key_rows.know(id, unpack(redis.call("HMGET", key.job(id), "rules", "name")))
    end
    local rules = keys.rules[id]
    if rules then
        return rule_texts.key(rules)
    end
end

-- Adds to `its` what field `name` of the key's hash says.
local function add_field(its, name, value)
    local type, lane = string.match(name, "^(%S+) (%S+)$")
    if type then
        local enqueued, first, standing = string.match(value, "^(%S+) (%S+) ?(%S*)$")
        its.sublanes[name] = { type = type, lane = lane, enqueued = enqueued, first = first, standing = standing }
        its.waits = true
    elseif name == "retry" then
        its.retry = value
    elseif name == "turn" then
        its.turn, its.turn_began, its.turn_ends = string.match(value, "^(%S+) (%d+) (%d+)$")
    elseif string.sub(name, 1, 1) == "@" then
        its.had[string.sub(name, 2)] = tonumber(value)
    else
        its.stated[name] = value
    end
end

-- RETURNS a table of what Redis says of a key:
-- sublanes: "type lane" -> a table: type and lane; first, enqueued: its first job, and when that was enqueued;
--   standing: the job that stands in the lane, "" for none; is_changed: whether this is still to be written.
-- waits: whether any job waits for the key. held: how many jobs hold it. is_paused.
-- stated: task -> the limit or rate that its jobs state.
-- retry: the job that the key is kept for (`keep_order`), nil for none.
-- turn: the type that the key is kept for (`key_turns`), nil for none; turn_began, turn_ends: since and until when, µs.
-- had: type -> when a job of it got the key last, µs, if jobs of other types waited.
-- Cost: three commands, once in a call; grows with the sub-lanes.
function key_rows.read(its_key)
    local keys = key_rows.of_call()
    local its = keys.known[its_key]
    if not its then
        if keys.are_some_paused == nil then
            keys.are_some_paused = redis.call("EXISTS", key.pauses) == 1
        end
        its = {
            sublanes = {}, stated = {}, had = {}, held = redis.call("ZCARD", key.held(its_key)),
            is_paused = keys.are_some_paused and redis.call("HEXISTS", key.pauses, "key:" .. its_key) == 1,
        }
        local fields = redis.call("HGETALL", key.of_key(its_key))
        for i = 1, #fields, 2 do
            add_field(its, fields[i], fields[i + 1])
        end
        keys.known[its_key] = its
    end
    return its
end

-- Writes the sub-lanes of a key that have changed.
function key_rows.write_sublanes(its_key, its)
    local fields = {}
    for name, sublane in pairs(its.sublanes) do
        if sublane.is_changed then
            local text = sublane.enqueued .. " " .. sublane.first
            fields[#fields + 1] = name
            fields[#fields + 1] = sublane.standing == "" and text or text .. " " .. sublane.standing
            sublane.is_changed = false
        end
    end
    many.call("HSET", key.of_key(its_key), fields)
end

-- Ends that a key is kept for a job or a type. `what`: "retry" or "turn". Jobs of any type may have room then. This
-- arrow may not fill their slots, so the next tick does.
function key_rows.keep_for_nobody(its_key, its, what)
    redis.call("HDEL", key.of_key(its_key), what)
    its[what] = nil
    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
end
