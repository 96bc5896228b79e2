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
        lanes.add(id, type, lane, enqueued)
        hooks.enters_lane(id, type, lane, enqueued)
    end
    if not fresh then
        hooks.of(id).waits(id, type)
    end
end

-- Called when job `id` of `type`, which is in no lane and no slot, starts a pause before its next run.
function hooks.pauses(id, type)
    hooks.of(id).is_paused(id)
    if id_suffix.has_key(id) then
        gate.reserve_keys(id, type)
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

-- Called when a job is added to its lane, or removed from it; not required for jobs without rules while tenants have no
-- fair shares. `job`: entry of the removed job in the current claim, or nil.
function hooks.enters_lane(id, type, lane, enqueued)
    if id_suffix.has_hint(id) then
        locality.enter(id, type, lane, enqueued)
    end
    if hooks.has_shares() then
        fair_share.enter(id, type, lane, enqueued)
    end
end
function hooks.leaves_lane(id, type, lane, job)
    if id_suffix.has_hint(id) then
        locality.leave(id, type, lane, job)
    end
    if hooks.has_shares() then
        fair_share.leave(id, type, lane, job ~= nil)
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
    due_times.settings_have_changed()
    local has_changed = tenants.change_shares()
    if has_changed then
        fair_share.restart()
    end
    return has_changed
end

-- Frees the keys of a job whose claim was removed, and its part of the type's limit, and corrects its tenant's charge.
-- A repeated invocation for the same claim changes nothing. `is_limited`, `rules`, `name`, `charged`: fields of the job
-- hash. `is_limited`: true if a limit or reserve counted the job. `name`: name of its task.
function hooks.free(id, type, is_limited, rules, name, charged)
    if is_limited and type then
        type_limits.free(type, id) -- first: while the type is full, the job's retry would not get the key
    end
    if charged then
        fair_share.correct(id, charged)
    end
    if id_suffix.has_key(id) then
        gate.free(id, type, rules, name)
    end
end

-- Returns the types whose blocked jobs a rule has admitted in this invocation.
function hooks.types_to_fill()
    local types = {}
    for type, is_to_fill in pairs(call.to_fill) do
        types[#types + 1] = is_to_fill and validate.is_type(type) and type or nil
    end
    return types
end

-- Returns `types`, plus up to MAX_FILLED types whose blocked jobs a rule has admitted; the caller fills all of them.
-- The second value has the remaining types, each followed by a space, for `claim`.
function hooks.add_types_to_fill(types)
    local all_types, unfilled = { unpack(types) }, ""
    for nth, type in ipairs(hooks.types_to_fill()) do
        if nth <= protocol.MAX_FILLED then
            all_types[#all_types + 1] = type
        else
            unfilled = unfilled .. type .. " "
        end
    end
    call.to_fill = {}
    return all_types, unfilled
end

-- default_hooks: default implementation of every rule hook, used for jobs without rules. A rule is a module with a
-- MARK, the character that ends its jobs' ids (`id_suffix`), and overrides only the hooks that it needs. Server
-- functions call `hooks.of(id)`, and never name a rule. On hot paths they use `hooks.by_mark`, which has no entry for
-- plain jobs.
-- A rule with STANDS_FOR_CALLS has job hashes that belong to no task: each represents several calls with their own
-- hashes.
-- luacheck: push no unused args

-- == Publishing: a job is published, or its time has come.

-- Returns a table about the batch that `job` should join, or nil. Called before the job hash is written.
function default_hooks.joins(job) return nil end

-- Returns additional fields of the job hash: name, value, ... `joined`: result of `joins`.
function default_hooks.fields(job, joined)
    return job.rules ~= "" and { "rules", job.rules } or {}
end

-- Called after `job` was written if its task has other unfinished jobs: it is a retry.
function default_hooks.is_retried(job) end

-- Called when the stored job `job` must be queued in `lane`, with its enqueue time. `joined`: result of `joins`.
-- `early`: a table with the fields `head` and `due` of its hash, if it has them (`due_times`). Returns "merged" if the
-- job waits as a part of a batch, or "patient" if its merge window has begun. If it returns nil, the caller queues the
-- job.
function default_hooks.enters(job, lane, enqueued, joined, is_again, early) return nil end

-- Called when the time of a scheduled job has come. Returns true if the job waits elsewhere than in its lane.
function default_hooks.is_due(id, type, lane, enqueued, head, due) return false end

-- Returns true if `job`, which is not written yet, will be merged or scheduled, and therefore adds no waiting job.
-- `opened`: a table for one publish, initially empty.
function default_hooks.adds_none(job, enqueued, opened) return false end

-- == Waiting. Publishing calls `enters` instead of `waits`. Claiming calls `choose`, and purging `is_purged`, instead
-- of `leaves`.

-- waits: called when a job starts to wait, waits again or is moved. leaves: called when a waiting job ends or is moved.
function default_hooks.waits(id, type) end
function default_hooks.leaves(id, type) end

-- Called when a job that was requeued without a result waits again.
function default_hooks.waits_again(id) end

-- Called when a job starts a pause before its next run.
function default_hooks.is_paused(id) end

-- Returns the job that waits on behalf of a job in state "merged"; otherwise the job itself.
function default_hooks.representative(id, into) return id end

-- Returns the number of calls that a job represents.
function default_hooks.number_of_calls(id) return 1 end

-- Called when the type of a waiting job was changed. `row`: its earlier fields: state, type, lane, rules, name,
-- patient.
function default_hooks.is_moved(id, row, type, lane) end

-- Prepares up to `max_calls` calls of a dead job for a replay. Returns true if no calls remain, and the number of
-- prepared calls.
function default_hooks.wait_again(id, max_calls) return true, 0 end

-- == Claims: a worker has the job.

-- Chooses the call to run for a job popped from its lane. Returns the id whose message is used, and its expiry time.
-- Returns nil if no call remains; the job has then been deleted.
function default_hooks.choose(id, type) return id end

-- Returns the earlier result of `choose` for a claimed job.
function default_hooks.runs(id, expires) return id, expires end

-- Ends a job as its worker reported. `known`: result of `claims.remove`. `why`: reason, or "". Returns the type of a
-- job that is pending again, or nil.
function default_hooks.release(id, known, how, why)
    local state = ends.STATE_AFTER[how]
    ends.on_worker(id, known, state or "done", state and why or "")
    return nil
end

-- Returns "expired" or "revoked" if that happened while a worker had the job, "gone" if the job no longer exists, or
-- nil if it can wait again. `is_acked`: true if its message was acked.
function default_hooks.meanwhile(id, is_acked)
    return ends.meanwhile(id)
end

-- == Ends: a job ends.

-- Called when a worker has ended a job with rules. Jobs that end while they wait: `ends_unrun`. `known`: see `release`.
function default_hooks.has_ended(id, known, state) end

-- Called when a waiting or requeued job ends without a run.
function default_hooks.ends_unrun(id) end

-- Called when a job in state "merged" should end. Returns true if it may end.
function default_hooks.let_go(id, how) return false end

-- Called when a job is dead-lettered. `row`: type, rules and name. Returns true if the rule reports the end to its
-- callers.
function default_hooks.dead_letter(id, reason, row) return false end

-- Deletes up to `max_calls` calls of a job. Returns true if the caller can delete the job's hash and indexes, or false
-- if calls remain.
function default_hooks.forget_some(id, max_calls) return true end

-- Returns the number of additional jobs that the deletion of a job counts as. `do_some_recur`: true if recurring calls
-- exist.
function default_hooks.counts_as(id, type, do_some_recur) return 0 end

-- Deletes a job that was waiting or scheduled.
function default_hooks.is_purged(id, type)
    job_index.remove(id, 0)
    redis.call("UNLINK", key.job(id), key.message(id))
end

-- Rebuilds a deleted job hash. Returns type, lane and enqueue time, or nil if that is not possible.
function default_hooks.rebuild(id) return nil end

-- Returns true if callers remain that have not received the job's result.
function default_hooks.has_callers(id) return false end
-- luacheck: pop
