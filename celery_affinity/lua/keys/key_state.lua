-- key_state: what Redis says of a key and of the rules of its jobs, read once in a call of an arrow.

-- RETURNS a table with what this call has read of keys and their jobs, and what it is still to do. False: nothing.
function key_state.cache()
    if not call.keys then
        call.keys = {
            known = {}, -- key -> what `read` returned, kept up to date with what the call writes
            jobs = {}, -- id -> its keys, the name of its task, and since when it waits (`shares`), false if not read
            tags = false, -- what was read and written of key `tags` (`shares`)
            needs = false, -- what tenants below their minimum need (`preemptors`)
            left = false, -- how much the call may still do (`key_state.budget`)
            is_unfinished = false, -- whether a tick is to go on, since the call may do no more
            to_renew = false, -- keys that `admission.reevaluate_all` is to renew
            is_renewed_later = false, -- whether keys are renewed only at the end of the call
            first_heads_changed = false, -- whether other jobs go first (`minimums`) than a claim has read
            passes = false, -- how the job that is about to be claimed passes (`roomy`)
            in_vain = false, -- keys kept for a type of which no job waited when they were renewed (`key_turns`)
            advanced = {}, -- jobs that could go on since others left in this call -> type and lane
            -- Since `renew_all` began:
            has_left = false, -- whether a job has left
            has_left_several = false, -- whether one with several keys has: it may have held up jobs that fit free slots
            called_back = false, -- jobs that stand no more
        }
    end
    return call.keys
end

-- RETURNS how much this call may still do, a table. to_open: sub-lanes in which it may have a job stand; to_close:
-- those in which it may have none stand any more; to_keep_back: jobs that it may keep back (`unbounded`); to_set_right:
-- outdated starts that it may correct (`shares`).
function key_state.budget()
    local keys = key_state.cache()
    keys.left = keys.left or {
        to_open = protocol.MOST_OPENED, to_close = 2 * protocol.MOST_OPENED,
        to_keep_back = 4 * protocol.MOST_OPENED, to_set_right = protocol.MOST_TURNS - 1,
    }
    return keys.left
end

-- Notes what the row of job `id` says, so that `keys_of` does not read it.
function key_state.put(id, rules, name)
    key_state.cache().jobs[id] = { keys = rules_codec.keys(rules), task = name or "", since = false }
end

-- RETURNS the keys of job `id`, as `rules_codec.keys` does; none if somebody deleted the rules: then the job is as one
-- without rules.
function key_state.keys_of(id)
    local jobs = key_state.cache().jobs
    local its = jobs[id]
    if not its then
        local rules, name, since
        if id_suffix.has_only_tenant(id) and not tenants.shares() then
            rules = redis.call("HGET", key.job(id), "rules")
        else
            rules, since, name = unpack(redis.call("HMGET", key.job(id), "rules", "since", "name"))
        end
        its = { keys = rules_codec.keys(rules or nil), task = name or "", since = since }
        jobs[id] = its
    end
    return its.keys
end

-- RETURNS whether a job states the limit, or the rate, of its key: not of a tenant.
function key_state.is_stated(stated)
    return stated.states ~= protocol.BY_SETTINGS
end

-- RETURNS whether job `id` has this key.
function key_state.has(id, its_key)
    for _, stated in ipairs(key_state.keys_of(id)) do
        if stated.key == its_key then
            return true
        end
    end
    return false
end

-- RETURNS whether a key is paused.
function key_state.is_paused(its_key)
    return tenants.may_be_paused() and redis.call("HEXISTS", key.pauses, "key:" .. its_key) == 1
end

-- RETURNS a bounded sub-lane, a table as `read` has it, as the `text` in the hash of its key says it. `standing_text`
-- makes the end of that text.
function key_state.sublane_of(type, lane, text)
    local enqueued, first, standing, is_first, turn = string.match(text or "", "^(%S+) (%S+) ?(%S*) ?(!?)~?(%d*)$")
    return {
        type = type, lane = lane, enqueued = enqueued, first = first, standing = standing,
        is_first = is_first == "!", turn = turn ~= "" and turn or nil,
    }
end

-- Adds to `its` what field `name` of the key's hash says.
local function add_field(its, name, value)
    local type, lane = string.match(name, "^(%S+) (%S+)$")
    if type and string.sub(name, 1, 1) == "+" then
        its.unkept[string.sub(name, 2)] = tonumber(value)
    elseif type and unbounded.is_one(value) then
        its.sublanes[name] = { type = type, lane = lane, standing = "", is_first = false, is_unbounded = true }
        its.waits, its.unbounded = true, value
    elseif type then
        its.sublanes[name], its.waits = key_state.sublane_of(type, lane, value), true
    elseif name == "retry" then
        its.retry = value
    elseif name == "turn" then
        its.turn, its.turn_began, its.turn_ends = string.match(value, "^(%S+) (%d+) (%d+)$")
    elseif name == "coming" then
        its.are_some_coming = true
    elseif string.sub(name, 1, 1) == "@" then
        its.had[string.sub(name, 2)] = tonumber(value)
    else
        its.stated[name] = value
    end
end

-- RETURNS a table of what Redis says of a key:
-- tenant: the name of the tenant whose key it is, false for another key.
-- sublanes: "type lane" -> a table: type and lane; first, enqueued: its first job, and when that was enqueued;
--   standing: the job that stands in the lane, "" for none; is_first: whether it goes first (`minimums`); turn: the era
--   in which it has a turn (`shares`), nil for none; is_changed: whether this is still to be written; has_more: whether
--   a job waits behind the first one, nil if that is not known; is_unbounded: whether all its jobs are in the lane,
--   and then it has no first job (`unbounded`).
-- unbounded: what the hash has of the sub-lanes that are unbounded, nil if none is.
-- unkept: "type lane" -> how many of the first jobs of a sub-lane that was unbounded are still to be kept back.
-- waits: whether any job waits for the key. held: how many jobs hold it, nil until `key_state.held` is asked. is_paused.
-- stated: task -> the limit or rate that its jobs state.
-- retry: the job that the key is kept for (`keep_order`), nil for none.
-- turn: the type that the key is kept for (`key_turns`), nil for none; turn_began, turn_ends: since and until when, µs.
-- had: type -> when a job of it got the key last, µs, if jobs of other types waited.
-- are_some_coming: whether the key is the second one of any job that waits, here or for its first key.
-- Cost: two commands, once in a call; grows with the sub-lanes.
function key_state.read(its_key)
    local keys = key_state.cache()
    local its = keys.known[its_key]
    if not its then
        its = {
            tenant = tenants.is_one(its_key) and tenants.name_of(its_key), sublanes = {}, stated = {}, had = {},
            unkept = {}, held = nil,
            is_paused = key_state.is_paused(its_key),
        }
        local fields = redis.call("HGETALL", key.of_key(its_key))
        for i = 1, #fields, 2 do
            add_field(its, fields[i], fields[i + 1])
        end
        keys.known[its_key] = its
        if its.unbounded then
            unbounded.check(its_key, its)
        end
    end
    return its
end

-- Has job `id`, which was claimed, hold the key that it states. Else only `hold_no_more` in gate.lua changes who does.
function key_state.hold(stated, id, fence)
    local its_key = stated.key
    local known = key_state.cache().known[its_key]
    redis.call("ZADD", key.held(its_key), fence, id)
    if known and known.held then
        known.held = known.held + 1
    end
    if stated.is_preemptible then
        evictions.hold(id, its_key, fence)
    end
end

-- RETURNS how many jobs hold a key.
function key_state.held(its_key, its)
    its.held = its.held or redis.call("ZCARD", key.held(its_key))
    return its.held
end

-- RETURNS the enqueue time of job `id`; nil if it does not wait in `sublane`.
function key_state.enqueued_of(its_key, sublane, id)
    return id == sublane.first and sublane.enqueued
        or redis.call("ZSCORE", key.sublane(its_key, sublane.type, sublane.lane), id)
end

-- Adds a job to a sub-lane. The caller renews the key. RETURNS whether the sub-lane is unbounded: then the job belongs
-- into its lane.
function key_state.add(its_key, its, id, type, lane, enqueued)
    local name = type .. " " .. lane
    if not its.waits then
        redis.call("ZADD", key.waiting_keys, "NX", gate.revision(), its_key)
        its.waits = true
    end
    local sublane = its.sublanes[name]
    local is_new = not sublane
    if is_new then
        sublane = { type = type, lane = lane, standing = "", is_first = false, is_unbounded = false }
        its.sublanes[name] = sublane
    end
    if its.tenant and (is_new or its.unbounded) then
        unbounded.admit(its_key, its, is_new and sublane)
    end
    redis.call("ZADD", key.sublane(its_key, type, lane), enqueued, id)
    if sublane.is_unbounded then
        return true
    elseif its.unkept[name] then
        its.unkept[name] = its.unkept[name] + 1 -- it may come before some of these
    end
    local enqueued_us, first_us = tonumber(enqueued), tonumber(sublane.enqueued)
    if not first_us or score.is_older(enqueued_us, id, first_us, sublane.first) then
        sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true
    end
    return false
end

-- Ends a sub-lane in which no job waits any more.
function key_state.end_sublane(its_key, its, name)
    redis.call("HDEL", key.of_key(its_key), name)
    its.sublanes[name] = nil
    if its.unkept[name] then
        redis.call("HDEL", key.of_key(its_key), "+" .. name)
        its.unkept[name] = nil
    end
end

-- Removes a job from a sub-lane. The caller renews the key.
function key_state.remove(its_key, its, id, type, lane)
    local name = type .. " " .. lane
    local place, sublane = key.sublane(its_key, type, lane), its.sublanes[name]
    local stood = sublane and sublane.standing == id
    if stood and sublane.turn then
        fair_share.revoke_admission(sublane, id, key_state.enqueued_of(its_key, sublane, id))
    end
    redis.call("ZREM", place, id)
    if sublane and sublane.is_unbounded then
        if redis.call("EXISTS", place) == 0 then
            key_state.end_sublane(its_key, its, name)
        end
        return
    end
    if stood then
        minimums.revoke_admission(its_key, sublane)
        sublane.standing, sublane.is_changed = "", true
    end
    if sublane and sublane.first == id then
        local first, enqueued, second = unpack(corrupt.first_of(place, 2))
        if first then
            sublane.first, sublane.enqueued, sublane.is_changed = first, enqueued, true
            sublane.has_more = second ~= nil
        else
            key_state.end_sublane(its_key, its, name)
        end
    elseif sublane then
        sublane.has_more = nil
    end
end

-- Notes that job `id`, which waits from now on, has this key as its second one: then what its task states of the key is
-- known when the job comes to it.
function key_state.expect(its_key, its, id, enqueued)
    redis.call("ZADD", key.coming(its_key), enqueued, id)
    if not its.are_some_coming then
        redis.call("HSET", key.of_key(its_key), "coming", 1)
        its.are_some_coming = true
    end
end

-- Job `id`, which has this key as its second one, waits no more. The caller renews the key.
function key_state.expect_no_more(its_key, its, id)
    redis.call("ZREM", key.coming(its_key), id)
    if redis.call("EXISTS", key.coming(its_key)) == 0 then
        redis.call("HDEL", key.of_key(its_key), "coming")
        its.are_some_coming = false
    end
end

-- RETURNS what is written of the job that stands in a sub-lane: " id", and then " !" if it goes first, "~" and its era
-- if it has a turn.
function key_state.standing_text(id, is_first, turn)
    if id == "" then
        return ""
    elseif not (is_first or turn) then
        return " " .. id
    end
    return " " .. id .. " " .. (is_first and "!" or "") .. (turn and "~" .. turn or "")
end

-- Writes the sub-lanes of a key that have changed.
function key_state.write_sublanes(its_key, its)
    local fields = {}
    for name, sublane in pairs(its.sublanes) do
        if sublane.is_changed then
            fields[#fields + 1] = name
            fields[#fields + 1] = sublane.is_unbounded and its.unbounded or sublane.enqueued .. " " ..
                sublane.first .. key_state.standing_text(sublane.standing, sublane.is_first, sublane.turn)
            sublane.is_changed = false
        end
    end
    if fields[1] then
        chunked.call("HSET", key.of_key(its_key), fields)
    end
end

-- Ends that a key is kept for a job or a type. `what`: "retry" or "turn". Jobs of any type may have room then. This
-- arrow may not fill their slots, so the next tick does.
function key_state.keep_for_nobody(its_key, its, what)
    redis.call("HDEL", key.of_key(its_key), what)
    its[what] = nil
    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
end
