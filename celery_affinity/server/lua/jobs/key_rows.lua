-- key_rows: what is written of a key and of its jobs, read once in a call.
-- @include base/clock.lua
local known = {} -- key -> what this call has read of it, and wrote since: see `read_key`
local rules_known, task_of = {}, {} -- job id -> what this call has read: its rules, the name of its task
local are_some_paused -- whether any pause is in force, once read

-- RETURNS the key of job `id`, the limit or rate that it states, and " order=1" if its retry goes first; nil if the
-- job's row does not say: then the job is as one without rules.
local function rules_of(id)
    if not rules_known[id] then
        local rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
        rules_known[id], task_of[id] = rules, name or ""
    end
    local rules = rules_known[id]
    if rules then
        return string.match(rules, "key=(%S+) %l+=(%S+)(.*)$")
    end
end

-- Keeps what the row of job `id` says, so that `rules_of` does not read it.
local function know(id, rules, name)
    rules_known[id], task_of[id] = rules, name or ""
end

-- RETURNS what is known of a key, read once in a call. sublanes: "type lane" -> a table: type, lane, id and enqueue
-- time of its first job, the id of the job that stands in the lane ("" for none), and whether that is to be written;
-- stated: task -> limit or rate; retry: the job that the key is kept for; turn: the type that it is kept for, and
-- turn_began, turn_ends: since and until when, µs; had: type -> when it got the key last, µs; is_paused; and held: how
-- many jobs hold it.
local function read_key(its_key)
    local found = known[its_key]
    if not found then
        if are_some_paused == nil then
            are_some_paused = redis.call("EXISTS", key.pauses) == 1
        end
        found = {
            sublanes = {}, stated = {}, had = {}, held = redis.call("ZCARD", key.held(its_key)),
            is_paused = are_some_paused and redis.call("HEXISTS", key.pauses, "key:" .. its_key) == 1,
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
        known[its_key] = found
    end
    return found
end

-- Writes what has changed of a key: its sub-lanes.
local function write_sublanes(its_key, its)
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
local function keep_for_nobody(its_key, its, what)
    redis.call("HDEL", key.of_key(its_key), what)
    its[what] = nil
    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
end
