-- hooks: the registry of rules. Server functions, claims and settings call rules only through it, and never name a
-- rule. A rule of jobs is identified by the suffix of their ids. `default_hooks` describes its hooks, and library.py
-- registers each such rule. A job with keys passes them before its lane (`gate`). A rule of types (`type_limits`,
-- `reserves`) blocks whole types during a claim. A publish can set limits on pending jobs (`max_pending`).
-- This file has the hooks that call several rules, or first check whether a job has a rule. A hook of one rule is a
-- function in that rule's file: `hooks.turn` is defined in keys/fair_share.lua.

-- by_mark: id suffix -> hooks of its rule. is_mark: id suffix -> true, for these suffixes, the suffixes of keys and the
-- hint's suffix.
hooks.by_mark, hooks.is_mark = {}, {}

-- Returns the hooks for job `id`.
function hooks.of(id)
    return hooks.by_mark[id_suffix.of(id)] or default_hooks
end

-- Returns the hooks for `job`, which is being published, or nil for a job without rules, the common case.
function hooks.of_new(job)
    return hooks.by_mark[job.mark] or job.rules ~= "" and default_hooks or nil
end

-- Queues a job in its lane, unless its key blocks it. `fresh`: the job if it was just published, or nil. `heads`: the
-- heads of its type, or nil if they have not been read.
function hooks.wait(id, type, lane, enqueued, fresh, heads)
    if id_suffix.has_key(id) then
        gate.enter(id, type, lane, enqueued, fresh, heads)
    else
        hooks.enters_lane(id, type, lane, enqueued)
        lanes.add(id, type, lane, enqueued)
    end
    if not fresh then
        hooks.of(id).waits(id, type)
    end
end

-- Called when job `id` of `type`, which is in no lane and no slot, starts a pause before its next run.
function hooks.pauses(id, type)
    hooks.of(id).is_paused(id)
    if id_suffix.has_key(id) then
        gate.keep_for(id, type)
    end
end

-- Removes a waiting job from its lane or its key.
function hooks.leave(id, type, lane)
    hooks.of(id).leaves(id, type)
    if id_suffix.has_key(id) then
        gate.leave(id, type, lane)
    else
        lanes.remove(id, type, lane)
    end
end

-- Like `hooks.leave`, for a job that has already been removed from its lane.
function hooks.leave_gate(id, type, lane)
    if id_suffix.has_key(id) then
        gate.leave(id, type, lane)
    end
end

-- Called when a job is added to its lane, or removed from it; not required for jobs without rules. `job`: entry of the
-- removed job in the current claim, or nil.
function hooks.enters_lane(id, type, lane, enqueued)
    if id_suffix.has_hint(id) then
        locality.enter(id, type, lane, enqueued)
    end
end
function hooks.leaves_lane(id, type, lane, job)
    if id_suffix.has_hint(id) then
        locality.leave(id, type, lane, job)
    end
end

-- Called when a worker has completed job `id` successfully. `known`: result of `claims.remove`.
function hooks.ended_well(worker, id, known)
    if id_suffix.has_hint(id) then
        locality.record(worker, known.rules)
    end
end

-- Called before a setting becomes `value`; nil means its default. Returns true if this changes the limits of keys.
function hooks.setting_changes(name, value)
    if name == "limits" then
        return type_changes.change(redis.call("HGET", key.settings, name), value)
    elseif name == "reserve" then
        type_changes.reserve(redis.call("HGET", key.settings, name), value)
    elseif name == "tenants" then
        return (redis.call("HGET", key.settings, name) or "") ~= (value or "")
    end
    return false
end

-- Called after a change of settings. Returns true if this changes the limits of keys.
function hooks.settings_have_changed()
    placement.settings_have_changed()
    return tenants.change_shares()
end

-- Returns the worker preferences (`placement.read`), or nil. They are returned only if `word`, field "!" of key
-- `heads`, indicates that there are no other rules of types.
function hooks.preferred(word)
    return not type_limits.holds_back(word) and placement.read(word) or nil
end

-- Frees the keys of a job whose claim was removed, and its part of the type's limit. A repeated invocation for the same
-- claim changes nothing. `is_limited`, `rules`, `name`: fields of the job hash. `is_limited`: true if a limit or
-- reserve counted the job. `name`: name of its task.
function hooks.free(id, type, is_limited, rules, name)
    if is_limited and type then
        type_limits.free(type, id) -- first: while the type is full, the job's retry would not get the key
    end
    if id_suffix.has_key(id) then
        gate.free(id, type, rules, name)
    end
end

-- Returns the types whose blocked jobs a rule has admitted in this invocation.
function hooks.to_fill()
    local types = {}
    for type, is_to_fill in pairs(call.to_fill) do
        types[#types + 1] = is_to_fill and validate.is_type(type) and type or nil
    end
    return types
end

-- Returns `types`, plus up to MOST_FILLED types whose blocked jobs a rule has admitted; the caller fills all of them.
-- The second value has the remaining types, each followed by a space, for `claim`.
function hooks.with_to_fill(types)
    local all_types, unfilled = { unpack(types) }, ""
    for nth, type in ipairs(hooks.to_fill()) do
        if nth <= protocol.MOST_FILLED then
            all_types[#all_types + 1] = type
        else
            unfilled = unfilled .. type .. " "
        end
    end
    call.to_fill = {}
    return all_types, unfilled
end
