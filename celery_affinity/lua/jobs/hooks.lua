-- hooks: the registry of rules: arrows, claims and settings ask rules here alone, and name none.
-- A rule of some jobs is told by the end of their ids: `default_hooks` says what its hooks are, and library.py enters each
-- such rule. A job with keys passes them before its lane (`keyed`). A rule of types (`type_rules`, `reserves`) holds
-- back whole types at a claim. A publish may say bounds of types (`bounds`).
-- Here are the hooks that ask several rules, or first look whether a job has one. A hook of one rule is a function of
-- that rule's file: `function hooks.turn` is in keyed/fair_share.lua.

-- Mark -> the hooks of its rule; and mark -> true, of all these, those of keys, and that of a hint.
hooks.by_mark, hooks.is_mark = {}, {}

-- RETURNS the hooks for a job.
function hooks.of(id)
    return hooks.by_mark[id_suffix.of(id)] or default_hooks
end

-- RETURNS the hooks for `job`, which is published; nil for a job without rules, as most are.
function hooks.of_new(job)
    return hooks.by_mark[job.mark] or job.rules ~= "" and default_hooks or nil
end

-- Has a job wait: in its lane, unless its key keeps it back. `fresh`: the job, if it was published just now; else nil.
-- `heads`: the heads of its type, if they are known.
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

-- Removes a job that waits from where it waits.
function hooks.leave(id, type, lane)
    hooks.of(id).leaves(id, type)
    if id_suffix.has_key(id) then
        gate.leave(id, type, lane)
    else
        lanes.remove(id, type, lane)
    end
end

-- Does what `hooks.leave` does, of a job that is not in its lane any more.
function hooks.leave_gate(id, type, lane)
    if id_suffix.has_key(id) then
        gate.leave(id, type, lane)
    end
end

-- A job comes into its lane, or leaves it. `job`: what a choice knows of the one that leaves, if one has chosen it. For
-- a job without rules nobody need call this.
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

-- A worker ended a job well, of which `known` is what `claims.remove` returned.
function hooks.ended_well(worker, id, known)
    if id_suffix.has_hint(id) then
        locality.record(worker, known.rules)
    end
end

-- A setting is about to become `value`; nil: its default. RETURNS whether this changes what it says of keys.
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

-- Settings have changed. RETURNS whether this changes what they say of keys.
function hooks.settings_have_changed()
    placement.settings_have_changed()
    return tenants.change_shares()
end

-- RETURNS how workers are preferred, as `placement.read` says it, if `word`, field "!" of key `heads`, says that this
-- is all that there is of rules of types; else nil.
function hooks.preferred(word)
    return not type_limits.holds_back(word) and placement.read(word) or nil
end

-- Frees what a job held whose claim was removed: its keys, and its part of the limit of its type. A second call for the
-- same claim changes nothing. `is_limited`, `rules`, `name`: what the job's row says: whether a limit or reserve
-- counted it, its rules, the name of its task.
function hooks.free(id, type, is_limited, rules, name)
    if is_limited and type then
        type_limits.free(type, id) -- first: else the type may be full still, and the job's retry not get the key
    end
    if id_suffix.has_key(id) then
        gate.free(id, type, rules, name)
    end
end

-- RETURNS the types of which a rule has let jobs start in this call.
function hooks.to_fill()
    local types = {}
    for type, is_to_fill in pairs(call.to_fill) do
        types[#types + 1] = is_to_fill and validate.is_type(type) and type or nil
    end
    return types
end

-- RETURNS `types`, and those of which a rule has let jobs start: the caller fills them, once. At most MOST_FILLED are
-- added: a second value names the others, each with a blank behind it, for `claim`.
function hooks.with_to_fill(types)
    local all, left = { unpack(types) }, ""
    for nth, type in ipairs(hooks.to_fill()) do
        if nth <= protocol.MOST_FILLED then
            all[#all + 1] = type
        else
            left = left .. type .. " "
        end
    end
    call.to_fill = {}
    return all, left
end
