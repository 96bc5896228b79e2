-- hooks: the registry of the rules that the end of a job's id tells. `no_rule` says what the hooks are; library.py
-- enters each rule here. A job with a key passes `keyed`, the gate before its lane.

-- Mark -> the hooks of its rule. `hooks.any_mark` is a pattern of all these marks, and that of a key.
hooks.by_mark = {}

-- RETURNS the hooks for a job.
function hooks.of(id)
    return hooks.by_mark[marks.of(id)] or no_rule
end

-- RETURNS the hooks for `job`, which is published; nil for a job without rules, as most are.
function hooks.of_new(job)
    return hooks.by_mark[job.mark] or job.rules ~= "" and no_rule or nil
end

-- Has a job wait: in its lane, unless its key keeps it back. `fresh`: the job, if it was published just now; else nil.
function hooks.wait(id, type, lane, enqueued, fresh)
    if marks.has_key(id) then
        keyed.enter(id, type, lane, enqueued, fresh)
    else
        lanes.add(id, type, lane, enqueued)
    end
    hooks.of(id).waits(id, type)
end

-- Removes a job that waits from where it waits.
function hooks.leave(id, type, lane)
    hooks.of(id).leaves(id, type)
    if marks.has_key(id) then
        keyed.leave(id, type, lane)
    else
        lanes.remove(id, type, lane)
    end
end

-- Does what `hooks.leave` does, of a job that is not in its lane any more.
function hooks.leave_gate(id, type, lane)
    if marks.has_key(id) then
        keyed.leave(id, type, lane)
    end
end

-- RETURNS whether job `id`, which has a key and is the best of those that wait, may start.
function hooks.may_start(id)
    return keyed.may_start(id)
end

-- Has a job with a key, which gets a slot, hold it.
function hooks.hold(id, type, lane, fence)
    keyed.hold(id, type, lane, fence)
end

-- Looks again at what settings that have changed say of keys.
function hooks.recheck()
    keyed.recheck()
end

-- Frees what a job held whose claim was removed: its key, and its part of the limit of its type. `is_limited`, `rules`,
-- `name`: what the job's row says: whether a limit or reserve counted it, its rules, the name of its task.
function hooks.free(id, type, is_limited, rules, name)
    if is_limited and type then
        type_rules.free(type, id) -- first: else the type may be full still, and the job's retry not get the key
    end
    if marks.has_key(id) then
        keyed.free(id, type, rules, name)
    end
end

-- RETURNS the types of which a rule has let jobs start in this call.
function hooks.gained()
    local types = {}
    for type, has_gained in pairs(call.gained) do
        types[#types + 1] = has_gained and type or nil
    end
    return types
end

-- RETURNS `types`, and those of which a rule has let jobs start: the caller fills them, once. At most MOST_GAINED are
-- added: a second value names the others, each with a blank behind it, for `claim`.
function hooks.and_gained(types)
    local all, left = { unpack(types) }, ""
    for nth, type in ipairs(hooks.gained()) do
        if nth <= protocol.MOST_GAINED then
            all[#all + 1] = type
        else
            left = left .. type .. " "
        end
    end
    call.gained = {}
    return all, left
end
