-- hooks: the registry of rules: arrows, claims and settings ask rules here alone, and name none.
-- A rule of some jobs is told by the end of their ids: `no_rule` says what its hooks are, and library.py enters each
-- such rule. A job with keys passes them before its lane (`keyed`). A rule of types (`type_rules`, `reserves`) holds
-- back whole types at a claim. A publish may say bounds of types (`bounds`).
-- A reason for the length: each hook is a function of one or two lines.

-- Mark -> the hooks of its rule; and mark -> true, of all these, those of keys, and that of a hint.
hooks.by_mark, hooks.is_mark = {}, {}

-- RETURNS the hooks for a job.
function hooks.of(id)
    return hooks.by_mark[marks.of(id)] or no_rule
end

-- RETURNS the hooks for `job`, which is published; nil for a job without rules, as most are.
function hooks.of_new(job)
    return hooks.by_mark[job.mark] or job.rules ~= "" and no_rule or nil
end

-- Has a job wait: in its lane, unless its key keeps it back. `fresh`: the job, if it was published just now; else nil.
-- `heads`: the heads of its type, if they are known.
function hooks.wait(id, type, lane, enqueued, fresh, heads)
    if marks.has_key(id) then
        keyed.enter(id, type, lane, enqueued, fresh, heads)
    else
        hooks.enters_lane(id, type, lane, enqueued)
        lanes.add(id, type, lane, enqueued)
    end
    if not fresh then
        hooks.of(id).waits(id, type)
    end
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

-- A job comes into its lane, or leaves it. `job`: what a choice knows of the one that leaves, if one has chosen it. For
-- a job without rules nobody need call this.
function hooks.enters_lane(id, type, lane, enqueued)
    if marks.has_hint(id) then
        locality.enter(id, type, lane, enqueued)
    end
end
function hooks.leaves_lane(id, type, lane, job)
    if marks.has_hint(id) then
        locality.leave(id, type, lane, job)
    end
end

-- A worker ended a job well, of which `known` is what `claims.remove` returned.
function hooks.ended_well(worker, id, known)
    if marks.has_hint(id) then
        locality.record(worker, known.rules)
    end
end

-- A worker goes.
function hooks.worker_goes(worker)
    locality.forget(worker)
end

-- RETURNS the job that goes instead of `job`, since its worker holds its hint; mostly `job` itself.
function hooks.nearer(waiting, job)
    return locality.better(waiting, job)
end

-- RETURNS what a claim of jobs of `types` for the slots of `view` knows of those whose hints its worker holds, as far
-- as they matter for the choice of a job; nil for nothing.
function hooks.near(types, view, preferred)
    local hints = preferred.bonus > 0 and view.worker and locality.of(view)
    return hints and locality.near(hints, preferred.bonus, types, view) or nil
end

-- RETURNS the job that goes instead of `job`, which has a key and is the oldest of the best lane; mostly itself.
function hooks.turn(job)
    return shares.turn(job)
end

-- RETURNS whether job `id`, which has a key, may wait for a slot in a worker.
function hooks.may_be_ahead(id)
    return marks.has_tenant_alone(id) and keyed.may_be_ahead(id)
end

-- RETURNS whether job `id`, which has a key and is the best of those that wait, may start.
function hooks.may_start(id, type, lane)
    return keyed.may_start(id, type, lane)
end

-- Has a job with a key, which gets a slot, hold it. `needs_no_turn`: whether it goes whosever turn it is.
function hooks.hold(id, type, lane, fence, needs_no_turn)
    keyed.hold(id, type, lane, fence, needs_no_turn)
end

-- Many jobs are about to leave.
function hooks.many_leave()
    key_standing.many_leave()
end

-- For arrows that fill no slots: has a tick fill them with the jobs that others, which have left, held up.
function hooks.leave_to_tick()
    key_standing.leave_to_tick()
end

-- Looks again at what settings that have changed say of keys.
function hooks.recheck()
    keyed.recheck()
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

-- Has each claim read what settings say of it, under the name `field`; false: nothing any more.
function hooks.say_to_claims(field, words)
    type_rules.write_field(field, words)
end

-- Does some of what no event triggers. RETURNS whether there may be more to do, and whether jobs may be to be stopped
-- (`have_some_stopped`).
function hooks.tick()
    return rule_changes.tick()
end

-- Has running jobs stopped for tenants that need their slots, once a tick has filled those that are free.
function hooks.have_some_stopped()
    preemption.tick()
end

-- RETURNS how a job has ended that a worker says it has stopped, as `preemption.stopped` does.
function hooks.stopped(worker, id, fence, known, ran)
    return preemption.stopped(worker, id, fence, known, ran)
end

-- The clock was set back: compares recurring calls with it, from the position `from` on. RETURNS whether there are
-- more.
function hooks.clock_was_set_back(from)
    return recurring.recheck(from)
end

-- RETURNS the heads of jobs that go before all others, as `minimums.heads` does, if they have changed since the call
-- asked last; else false.
function hooks.first_heads(types)
    local keys = call.keys
    if not (keys and keys.first_heads_changed) then
        return false
    end
    keys.first_heads_changed = false
    return minimums.heads(types) or {}
end

-- RETURNS whether a job that goes before all others waits in its lane.
function hooks.waits_first(id, type, lane)
    return minimums.waits(id, type, lane)
end

-- RETURNS how workers are preferred, as `placement.read` says it, if `word`, field "!" of key `heads`, says that this
-- is all that there is of rules of types; else nil.
function hooks.preferred(word)
    return not type_rules.holds_back(word) and placement.read(word) or nil
end

-- RETURNS which of `types` a claim may choose from, as `type_rules.open` does.
function hooks.open(types, heads, settings, is_ahead)
    return type_rules.open(types, heads, settings, is_ahead)
end

-- Counts the claim of a job whose type has a limit, or whose class a reserve. RETURNS whether the type is full now.
function hooks.count(type, id, lane)
    return type_rules.hold(type, id, lane)
end

-- A publish says bounds of types, in `text`. RETURNS its reply if it is refused for one of them; nil if it is not.
function hooks.refuses(text, arguments)
    bounds.read(text)
    return bounds.full(arguments)
end

-- Drops a job if `job`, which was written with this `state`, is one too many, as `bounds.keep` does.
function hooks.keep_to_bounds(job, state)
    return bounds.keep(job, state)
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
