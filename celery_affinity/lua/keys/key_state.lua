-- key_state: reads the state of a key and the rules of its jobs once per invocation, and writes the changes.

-- Returns a table of the keys and jobs that this invocation has read, and of its remaining work. False means empty.
function key_state.cache()
    if not call.keys then
        call.keys = {
            known = {}, -- key -> result of `read`, updated with each write of this invocation
            jobs = {}, -- id -> its keys and its task name
            has_listed = false, -- true if this invocation has listed jobs (`fair_share.list_some`)
            shares = false, -- key -> share of a tenant (`fair_share`)
            needs = false, -- needs of tenants below their minimum (`preemptors`)
            left = false, -- remaining work budget (`key_state.budget`)
            is_unfinished = false, -- true if a tick must continue, since the budget is used up
            to_renew = false, -- keys that `admission.reevaluate_all` must re-evaluate
            is_renewed_later = false, -- true if keys are only re-evaluated at the end of the invocation
            first_heads_changed = false, -- true if minimum lanes (`minimums`) have changed since a claim read them
            passes = false, -- how the job about to be claimed passes (`fast_path`)
            in_vain = false, -- keys reserved for a type without jobs at their re-evaluation (`key_turns`)
            advanced = {}, -- jobs that could advance since others left in this invocation -> type and lane
            -- Since `reevaluate_all` began:
            has_left = false, -- true if a job has left
            has_left_several = false, -- true if a job with several keys has left: see `reevaluate_all`
            called_back = false, -- jobs whose admission was revoked
        }
    end
    return call.keys
end

-- Returns the remaining work budget of this invocation.
--   to_open: sub-lanes in which it may admit a job.
--   to_close: sub-lanes in which it may revoke an admission.
--   to_keep_back: jobs that it may block (`unbounded`).
function key_state.budget()
    local keys = key_state.cache()
    keys.left = keys.left or {
        to_open = protocol.MAX_OPENED, to_close = 2 * protocol.MAX_OPENED,
        to_keep_back = 4 * protocol.MAX_OPENED,
    }
    return keys.left
end

-- Caches the rules of job `id`, so that `keys_of` does not read them.
function key_state.put(id, rules, name)
    key_state.cache().jobs[id] = { keys = rules_codec.keys(rules), task = name or "" }
end

-- Returns the keys of job `id`, as `rules_codec.keys` does. Returns none if another client deleted the rules; the job
-- is then treated as a job without rules.
function key_state.keys_of(id)
    local jobs = key_state.cache().jobs
    if not jobs[id] then
        local rules, name
        if id_suffix.has_only_tenant(id) then
            rules = redis.call("HGET", key.job(id), "rules")
        else
            rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
        end
        key_state.put(id, rules or nil, name)
    end
    return jobs[id].keys
end

-- Returns the tenant key of job `id`, or nil. It is the last of its keys.
function key_state.tenant_key_of(id)
    local job_keys = id_suffix.may_have_tenant(id) and key_state.keys_of(id) or {}
    local stated = job_keys[#job_keys]
    return stated and stated.tenant and stated.key or nil
end

-- Returns true if jobs specify the limit or rate of the key. For a tenant, the settings do.
function key_state.is_stated(stated)
    return stated.states ~= protocol.BY_SETTINGS
end

function key_state.has(id, job_key)
    for _, stated in ipairs(key_state.keys_of(id)) do
        if stated.key == job_key then
            return true
        end
    end
    return false
end

function key_state.is_paused(job_key)
    return tenants.may_be_paused() and redis.call("HEXISTS", key.pauses, "key:" .. job_key) == 1
end

-- Returns a bounded sub-lane as a table (see `read`), parsed from its `text` in the key's hash. `standing_text` builds
-- the end of that string.
function key_state.sublane_of(type, lane, text)
    local enqueued, first, standing, is_first = string.match(text or "", "^(%S+) (%S+) ?(%S*) ?(!?)$")
    return {
        type = type, lane = lane, enqueued = enqueued, first = first, standing = standing, is_first = is_first == "!",
    }
end

-- Adds field `name` of the key's hash to `state`.
local function add_field(state, name, value)
    local type, lane = string.match(name, "^(%S+) (%S+)$")
    if type and string.sub(name, 1, 1) == "+" then
        state.unkept[string.sub(name, 2)] = tonumber(value)
    elseif type and unbounded.is_value(value) then
        state.sublanes[name] = { type = type, lane = lane, standing = "", is_first = false, is_unbounded = true }
        state.waits, state.unbounded = true, value
    elseif type then
        state.sublanes[name], state.waits = key_state.sublane_of(type, lane, value), true
    elseif name == "retry" then
        state.retry = value
    elseif name == "turn" then
        state.turn, state.turn_began, state.turn_ends = string.match(value, "^(%S+) (%d+) (%d+)$")
    elseif name == "coming" then
        state.are_some_coming = true
    elseif string.sub(name, 1, 1) == "@" then
        state.had[string.sub(name, 2)] = tonumber(value)
    else
        state.stated[name] = value
    end
end

-- Returns the state of a key in Redis, as a table.
--   tenant: name of the tenant that owns the key, or false.
--   sublanes: "type lane" -> a table:
--     type, lane: the lane.
--     first, enqueued: the first job and its enqueue time.
--     standing: the admitted job, "" if there is none.
--     is_first: true if the admitted job is also in a minimum lane (`minimums`).
--     is_changed: true if the sub-lane must still be written.
--     has_more: true if a job waits behind the first one, nil if that has not been read.
--     is_unbounded: true if all its jobs are in the lane; it then has no first job (`unbounded`).
--   unbounded: field value of the unbounded sub-lanes, nil if there are none.
--   unkept: "type lane" -> number of first jobs that must still be blocked in a formerly unbounded sub-lane.
--   waits: true if any job waits for the key.
--   held: number of holders, nil before `key_state.held` is called.
--   is_paused: true if the key is paused.
--   stated: task -> the limit or rate that its jobs specify.
--   retry: the job that the key is reserved for (`keep_order`), or nil.
--   turn: the type that the key is reserved for (`key_turns`), or nil.
--   turn_began, turn_ends: start and end of that turn (µs).
--   had: type -> time (µs) at which its jobs last got the key while other types waited.
--   are_some_coming: true if the key is the second key of any waiting job, regardless of the key that it waits for.
-- Cost: two commands, once per invocation; grows with the number of sub-lanes.
function key_state.read(job_key)
    local keys = key_state.cache()
    local state = keys.known[job_key]
    if not state then
        state = {
            tenant = tenants.is_tenant_key(job_key) and tenants.name_of(job_key), sublanes = {}, stated = {}, had = {},
            unkept = {}, held = nil,
            is_paused = key_state.is_paused(job_key),
        }
        local fields = redis.call("HGETALL", key.key_state(job_key))
        for i = 1, #fields, 2 do
            add_field(state, fields[i], fields[i + 1])
        end
        keys.known[job_key] = state
        if state.unbounded then
            unbounded.check(job_key, state)
        end
    end
    return state
end

-- Lets the claimed job `id` hold the key `stated`. Only `release_key` in gate.lua also changes the holders.
function key_state.hold(stated, id, fence)
    local job_key = stated.key
    local state = key_state.cache().known[job_key]
    redis.call("ZADD", key.held(job_key), fence, id)
    if state and state.held then
        state.held = state.held + 1
    end
    if stated.is_preemptible then
        evictions.hold(id, job_key, fence)
    end
end

-- Returns the number of jobs that hold a key.
function key_state.held(job_key, state)
    state.held = state.held or redis.call("ZCARD", key.held(job_key))
    return state.held
end

-- Returns the enqueue time of job `id`, or nil if it does not wait in `sublane`.
function key_state.enqueued_of(job_key, sublane, id)
    return id == sublane.first and sublane.enqueued
        or redis.call("ZSCORE", key.key_queue(job_key, sublane.type, sublane.lane), id)
end

-- Adds a job to a sub-lane. The caller re-evaluates the key. Returns true if the sub-lane is unbounded; the job then
-- belongs in its lane.
function key_state.add(job_key, state, id, type, lane, enqueued)
    local name = type .. " " .. lane
    if not state.waits then
        redis.call("ZADD", key.waiting_keys, "NX", gate.revision(), job_key)
        state.waits = true
    end
    local sublane = state.sublanes[name]
    local is_new = not sublane
    if is_new then
        sublane = { type = type, lane = lane, standing = "", is_first = false, is_unbounded = false }
        state.sublanes[name] = sublane
    end
    if state.tenant and (is_new or state.unbounded) then
        unbounded.admit(job_key, state, is_new and sublane)
    end
    redis.call("ZADD", key.key_queue(job_key, type, lane), enqueued, id)
    if sublane.is_unbounded then
        return true
    elseif state.unkept[name] then
        state.unkept[name] = state.unkept[name] + 1 -- it may be older than some of these
    end
    local enqueued_us, first_us = tonumber(enqueued), tonumber(sublane.enqueued)
    if not first_us or score.is_older(enqueued_us, id, first_us, sublane.first) then
        sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true
    end
    return false
end

function key_state.end_sublane(job_key, state, name)
    redis.call("HDEL", key.key_state(job_key), name)
    state.sublanes[name] = nil
    if state.unkept[name] then
        redis.call("HDEL", key.key_state(job_key), "+" .. name)
        state.unkept[name] = nil
    end
end

-- Removes a job from a sub-lane. The caller re-evaluates the key.
function key_state.remove(job_key, state, id, type, lane)
    local name = type .. " " .. lane
    local sublane_key, sublane = key.key_queue(job_key, type, lane), state.sublanes[name]
    local was_admitted = sublane and sublane.standing == id
    redis.call("ZREM", sublane_key, id)
    if sublane and sublane.is_unbounded then
        if redis.call("EXISTS", sublane_key) == 0 then
            key_state.end_sublane(job_key, state, name)
        end
        return
    end
    if was_admitted then
        minimums.revoke_admission(job_key, sublane)
        sublane.standing, sublane.is_changed = "", true
    end
    if sublane and sublane.first == id then
        local first, enqueued, second = unpack(corrupt.first_of(sublane_key, 2))
        if first then
            sublane.first, sublane.enqueued, sublane.is_changed = first, enqueued, true
            sublane.has_more = second ~= nil
        else
            key_state.end_sublane(job_key, state, name)
        end
    elseif sublane then
        sublane.has_more = nil
    end
end

-- Records that this is the second key of the waiting job `id`. The limit that its task specifies is thereby kept until
-- the job reaches the key.
function key_state.expect(job_key, state, id, enqueued)
    redis.call("ZADD", key.second_key_jobs(job_key), enqueued, id)
    if not state.are_some_coming then
        redis.call("HSET", key.key_state(job_key), "coming", 1)
        state.are_some_coming = true
    end
end

-- Removes the record of `expect` when job `id` stops waiting. The caller re-evaluates the key.
function key_state.stop_expecting(job_key, state, id)
    redis.call("ZREM", key.second_key_jobs(job_key), id)
    if redis.call("EXISTS", key.second_key_jobs(job_key)) == 0 then
        redis.call("HDEL", key.key_state(job_key), "coming")
        state.are_some_coming = false
    end
end

-- Returns the field text for the admitted job of a sub-lane: " id", then " !" if it is in a minimum lane.
function key_state.standing_text(id, is_first)
    return id == "" and "" or " " .. id .. (is_first and " !" or "")
end

-- Writes the changed sub-lanes of a key.
function key_state.write_sublanes(job_key, state)
    local fields = {}
    for name, sublane in pairs(state.sublanes) do
        if sublane.is_changed then
            fields[#fields + 1] = name
            fields[#fields + 1] = sublane.is_unbounded and state.unbounded or sublane.enqueued .. " " ..
                sublane.first .. key_state.standing_text(sublane.standing, sublane.is_first)
            sublane.is_changed = false
        end
    end
    if fields[1] then
        chunked.call("HSET", key.key_state(job_key), fields)
    end
end

-- Ends the reservation of a key for a job or a type. Jobs of any type can then start; the next tick fills their slots,
-- since this server function may not fill any.
--   reservation: "retry" or "turn".
function key_state.end_reservation(job_key, state, reservation)
    redis.call("HDEL", key.key_state(job_key), reservation)
    state[reservation] = nil
    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, job_key)
end
