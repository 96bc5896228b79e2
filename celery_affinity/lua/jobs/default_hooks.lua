-- default_hooks: the hooks of a rule of jobs, and what each does with a job that has no such rule. A rule is a module with a
-- MARK, which the ids of its jobs end with (`marks`); it has the hooks that it needs. An arrow asks `hooks.of(id)`
-- for the hooks of a job, and names no rule. Jobs without a mark pay for none: where every job passes, an arrow asks
-- `hooks.by_mark`, which has no entry for them.
-- A rule that STANDS_FOR_CALLS has rows that are no task's: each stands for calls that have rows of their own.

-- == A job is published, or its time has come.

-- RETURNS what `job`, whose row is about to be written, is to join: a table; nil for nothing.
function default_hooks.joins(_)
    return nil
end

-- RETURNS the further fields of the row of `job`, names and values. `joined`: what `joins` returned.
function default_hooks.fields(job, _)
    return job.rules ~= "" and { "rules", job.rules } or {}
end

-- `job` was written, and its task has other jobs that have not ended: it is a retry.
function default_hooks.is_retried(_)
end

-- Job `job`, which was written, is to wait in `lane` since `due`. `joined`: what `joins` returned, before it was
-- written. RETURNS "merged" if it waits as a part of what it joined, "patient" if it is not to wait in its lane yet;
-- nil: the caller has it wait.
function default_hooks.enters(_, _, _, _, _)
    return nil
end

-- The time of a scheduled job has come. RETURNS whether it is to wait elsewhere than in its lane.
function default_hooks.is_due(_, _, _, _)
    return false
end

-- RETURNS whether `job`, which is not written yet, will join others or be scheduled, so that it will not be one more
-- that waits. `opened`: a table of the call of publish, empty at first.
function default_hooks.adds_none(_, _, _)
    return false
end

-- == A job waits. Of a job that is published `enters` is asked instead of `waits`; of one that waits no more since a
-- worker gets it `choose` instead of `leaves`, and of one that a purge deletes `is_purged`.

-- A job begins to wait: its time has come, or it waits again or elsewhere. A job waits no more: it ends, or is moved.
function default_hooks.waits(_, _)
end
function default_hooks.leaves(_, _)
end

-- A job that was given back without a result waits again.
function default_hooks.waits_again(_)
end

-- Called when a job starts a pause before its next run.
function default_hooks.is_paused(_)
end

-- RETURNS the job that waits for a job in state "merged", and that state; of others the job itself.
function default_hooks.representative(id, _)
    return id
end

-- RETURNS for how many calls a job stands.
function default_hooks.number_of_calls(_)
    return 1
end

-- The type of a job that waits was changed. `row`: what it says: state, type, lane, rules, name, patient.
function default_hooks.is_moved(_, _, _, _)
end

-- A dead job is to wait again: handles `most` of its calls. RETURNS whether none is left, and how many it handled.
function default_hooks.wait_again(_, _)
    return true, 0
end

-- == A worker has a job.

-- Chooses what is run of a job that was popped from its lane. RETURNS the id whose message it is, and when that
-- expires; nil if nothing is left to run, and then the job is gone.
function default_hooks.choose(id, _)
    return id
end

-- RETURNS what `choose` returned for a job that a worker has.
function default_hooks.runs(id, expires)
    return id, expires
end

-- The worker says how a job ended. `known`: what `claims.remove` returned. `why`: in words, "" for nothing. RETURNS the
-- type of a job that is pending again, else nil.
function default_hooks.release(id, known, how, why)
    local state = ends.STATE_AFTER[how]
    ends.on_worker(id, known, state or "done", state and why or "")
    return nil
end

-- RETURNS "expired" or "revoked" for a job to which that happened while a worker had it; "gone" for one that waits no
-- more; nil if it may wait again. `is_acked`: whether its message was acked.
function default_hooks.meanwhile(id, _)
    return ends.meanwhile(id)
end

-- == A job ends.

-- A job has ended in this state; `known`: as in `release`.
function default_hooks.has_ended(_, _, _)
end

-- A job that waits, or that comes back, ends without a run.
function default_hooks.ends_unrun(_)
end

-- A job in state "merged" is to end. RETURNS whether it may.
function default_hooks.let_go(_, _)
    return false
end

-- A job becomes a dead letter. `row`: what it says: type, rules, name. RETURNS whether the rule has seen to its
-- callers.
function default_hooks.dead_letter(_, _, _)
    return false
end

-- A job is to be deleted, whose indexes and row the caller deletes. RETURNS false if `most` of its calls are not all.
function default_hooks.forget_some(_, _)
    return true
end

-- RETURNS as how many jobs more than one the deletion of a job counts. `do_some_recur`: whether there are recurring
-- calls.
function default_hooks.counts_as(_, _, _)
    return 0
end

-- Deletes a job that waited, or that was scheduled.
function default_hooks.is_purged(id, _)
    job_index.remove(id, 0)
    redis.call("UNLINK", key.job(id), key.message(id))
end

-- Makes the row of a job again that somebody deleted. RETURNS type, lane and enqueue time; nil if that cannot be.
function default_hooks.make_again(_)
    return nil
end

-- RETURNS whether callers are left that do not know the end of a job.
function default_hooks.has_callers(_)
    return false
end
