"""Invariants of recurring calls, found by comparing all jobs before and after each function.

A call is due an interval after the last request: a matching job that became pending, a firing, or the declaration. It
is due earlier only if jobs that postponed it ended without a run.
"""

from collections import Counter
from dataclasses import dataclass, field

from celery_affinity.schema.job_record import is_batch
from celery_affinity.schema.rules_codec import decode_rules

#: States of jobs that became pending and have not run yet; a collecting call and a paused job count as pending.
_TO_RUN = ("pending", "merged", "claimed")


@dataclass
class _Known:
    """The history of a recurring call since it was declared, changed or resumed, or the clock was reset."""

    call: object
    is_suspended: bool
    requested_us: int
    matched_us: int | None = None
    is_taken_back: bool = False
    made: set[str] = field(default_factory=set)


class Recurrence:
    """Tracks the recurring calls of a reference."""

    def __init__(self):
        self._known, self._states, self._tasks = {}, {}, Counter()
        self._ids, self._again = set(), set()
        self._now_us = 0

    def see(self, reference, now_us):
        """Compare the state with the state before the last function."""
        if now_us < self._now_us:
            self._known.clear()
        self._now_us = now_us
        for name, entry in reference.recurring.items():
            known, is_suspended = self._known.get(name), entry.handed_out_us is None
            if known is None or known.call is not entry.call or known.is_suspended != is_suspended:
                self._known[name] = _Known(entry.call, is_suspended, max(now_us, entry.due_us - _interval(entry)))
        for name in self._known.keys() - reference.recurring.keys():
            del self._known[name]
        calls = [job for job in reference.jobs.values() if decode_rules(job.rules).merge and not is_batch(job.id)]
        states = {job.id: "pending" if job.is_patient or job.is_paused else job.state for job in calls}
        self._see_tasks(reference)
        changes = [
            (job_id, self._before(job_id), states.get(job_id, "")) for job_id in states.keys() | self._states.keys()
        ]
        # One tick may make some pending and end others. The latter come last: they may bring a due time forward again.
        for change in sorted(changes, key=lambda change: (change[2] not in _TO_RUN, change[0])):
            self._see_job(reference, *change)
        jobs = reference.jobs
        self._states = {job_id: (state, self._place(jobs[job_id], jobs)) for job_id, state in states.items()}
        self._tasks = Counter(job.task_id for job in jobs.values() if not is_batch(job.id) and _lives(reference, job))
        self._check(reference, now_us)

    def _before(self, job_id):
        return self._states.get(job_id, ("", None))[0]

    def _see_tasks(self, reference):
        """Find new jobs whose tasks already have others. Within one invocation, earlier jobs count for later ones."""
        self._again = set()
        for job in reference.jobs.values():
            if job.id not in self._ids and job.task_id and not is_batch(job.id):
                if self._tasks[job.task_id]:
                    self._again.add(job.id)
                self._tasks[job.task_id] += 1
        self._ids = set(reference.jobs)

    def _see_job(self, reference, job_id, before, after):
        if _has_ended_without_a_run(before, after):
            for known in self._matching(self._states[job_id][1]):
                known.is_taken_back = True
        elif before in ("", "scheduled") and after in _TO_RUN:
            job = reference.jobs[job_id]
            is_again = job.again_us is not None if before else job_id in self._again
            for known in [] if is_again else self._matching(self._place(job, reference.jobs)):
                known.matched_us = known.requested_us = self._now_us
                known.is_taken_back = False
        elif before in ("", "scheduled") and after in ("revoked", "expired", "dead"):
            for known in self._matching(self._place(reference.jobs[job_id], reference.jobs)):
                known.matched_us, known.is_taken_back = None, True  # it may have been pending in between
                known.requested_us = max(known.requested_us, self._now_us)

    def made(self, name, due, reference, due_us, now_us):
        """Record that the call handed out for *due* was made."""
        known = self._known[name]
        assert due_us <= now_us or now_us < self._now_us, f"{name} was made before it was due"
        assert due not in known.made, f"{name} was made twice for {due}"
        known.made.add(due)
        entry = reference.recurring[name]
        if entry.call.since == "enqueue" and known.matched_us is not None and not known.is_taken_back:
            since_us = now_us - known.matched_us
            assert since_us >= _interval(entry), f"{name} was made {since_us} µs after a match"

    def requested(self, name, now_us):
        """Record that a call was made, manually or not."""
        if name in self._known:
            self._known[name].requested_us = now_us

    def _check(self, reference, now_us):
        for name, entry in reference.recurring.items():
            known, interval_us = self._known[name], _interval(entry)
            if entry.call.since == "enqueue":
                latest_us = known.requested_us + interval_us
                assert entry.due_us <= latest_us, f"{name} is due later than an interval after the last request"
                if known.matched_us is not None and not known.is_taken_back:
                    assert entry.due_us >= known.matched_us + interval_us, (
                        f"{name} is due within an interval of a match"
                    )
            assert entry.handed_out_us is None or entry.handed_out_us >= entry.due_us

    def _place(self, job, jobs):
        batch = jobs.get(job.into)  # it may have been moved to another type with all its calls
        return (batch or job).type, decode_rules(job.rules).merge.key, job.task_name

    def _matching(self, place):
        calls = ((known.call.type, known.call.merge_key, known.call.task) for known in self._known.values())
        return [known for known, its in zip(self._known.values(), calls, strict=True) if its == place]


def _has_ended_without_a_run(before, after):
    return before in _TO_RUN and after in ("revoked", "expired", "")


def _interval(entry):
    return entry.call.stale_after_us


def _lives(reference, job):
    return not reference.is_fading(job)
