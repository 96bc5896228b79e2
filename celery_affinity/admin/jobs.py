"""``celery_affinity.jobs(app)``: jobs by id."""
# A reason for the length: each thing that is done to a job is a method, and what it says is beside it.

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from celery import Celery
from kombu import Connection

from ..reports import cohorts, dead_letters
from ..reports.job_lists import JobsPage
from ..reports.jobs import Job
from ..scheduler.cohorts import Cohorts
from ..scheduler.scheduler import Scheduler
from ..transport.app_api import fleet_of
from . import actions, job_values
from .actions import JobFilters, MoveTarget, can_terminate_error
from .job_values import JobValues

#: The way to the cohorts of an app, which is open for a while.
Reach = Callable[[], AbstractContextManager[Cohorts]]


@dataclass(frozen=True)
class Change:
    """The outcome of a change of a job: whether it was *done*, and the state in which the job was *found*.

    *note*: in words what was done, or why nothing was done.
    """

    id: str
    found: str
    done: bool
    note: str


class Jobs:
    """The jobs of *app*'s broker. *reach*: a connection to the broker; None: one of the app's own pool.

    Each method raises TransportError if the app uses another transport, and kombu's OperationalError if the broker
    does not answer: after 5 s, plus ``broker_connection_timeout`` at most.
    """

    def __init__(self, app: Celery, reach: Reach | None = None) -> None:
        self.app = app
        self._reach = reach or (lambda: fleet_of(app))

    def get(self, id: str) -> Job:
        """Return the facts of the newest job of the task *id*.

        If Redis has forgotten the job, the app's result backend is asked. A job that neither knows is "unknown".
        """
        found = self.known(id)
        return found if found.source else job_values.backend_of_job(self.app, id)

    def known(self, id: str) -> Job:
        """Return what `get` returns, but do not ask the result backend: an ended job is known for `affinity_keep` s."""
        return self.known_many([id])[0]

    def known_many(self, ids: Sequence[str]) -> Sequence[Job]:
        """Return what `known` returns for each of *ids*, in as few round trips as for one."""
        with self._reach() as fleet:
            return cohorts.jobs_of_all(fleet, ids)

    def values(self, id: str) -> JobValues:
        """Return what the job *id* was called with, its result, or its exception and traceback, as far as known."""
        job = self.known(id)
        with self._reach() as fleet:
            found = fleet.ask(
                job.cohort or fleet.names[0], lambda scheduler: job_values.decode_arguments(scheduler.reader, job)
            )
        return job_values.with_result(self.app, id, found)

    def list(
        self,
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        stamp: str | None = None,
        older_than_s: float | None = None,
        key: str | None = None,
        newer_than_s: float | None = None,
        argument: str | None = None,
        cohort: str | None = None,
    ) -> JobsPage:
        """Return a page of the jobs that have not ended, and of the dead letters.

        *state*: one of `job_filter.LISTED`. *task*: a name, in which ``*`` stands for anything. *cursor*: the cursor of
        the page before. *stamp*: "name=value"; merged calls are then listed one by one, otherwise as one run.
        *older_than_s*, *newer_than_s*: only jobs that were enqueued at least, or at most, so many seconds ago. *key*:
        only jobs of this key. *argument*: "name=value", an argument of the call by its name, or by position as
        ``args[0]``; the value as ``str`` writes it, in which ``*`` stands for anything. Merged calls match if all calls
        of the run do. *cohort*: only jobs of this cohort. With a filter, one page reads 1,000 jobs at most, and 16 MB
        of messages, and is `partial` if it stopped there. Raises OptionError.
        """
        filters = JobFilters(state, type, task, stamp, key, older_than_s, newer_than_s, argument)
        with self._reach() as fleet:
            names = fleet.serving(type, cohort)
            return cohorts.page_of_all(fleet, lambda reader: filters.of(self.app, reader), names, limit, cursor)

    def cancel(self, id: str, terminate: bool = False, *, connection: Connection | None = None) -> Change:
        """Revoke a job: a waiting job ends at once, and a job that a worker holds does not start.

        *terminate*: end a running job as well, where the pool supports it. *connection*: for telling the workers.
        """
        job = self.known(id)
        if job.state == "unknown" or job.has_ended:
            return Change(id, job.state, False, _CANNOT_BE_CANCELLED[job.state])
        if job.state == "running" and not terminate:
            return Change(id, job.state, False, f"it runs on {job.worker}; with terminate it is ended")
        ends = "it does not start"
        if job.state == "running":
            pools = can_terminate_error(self.app, [job.worker], connection)
            if pool := pools.get(job.worker or ""):
                note = f"it runs on {job.worker}, whose pool, {pool}, cannot end a task: it goes on"
                return Change(id, job.state, False, note)
            ends = "its worker was told to end it"
            ends += "" if pools else "; the worker did not say whether its pool can"
        # The transport revokes what waits when it sends the broadcast.
        self.app.control.revoke(job.id, terminate=terminate, connection=connection)
        return Change(id, job.state, True, f"revoked: {ends}")

    def move(self, id: str, type: str) -> Change:
        """Change the *type* of a waiting job, which keeps its first enqueue time.

        A retry of the task has the new type, too. Merged calls move with their run. Raises OptionError.
        """
        return self.change(id, MoveTarget(type=type))

    def prioritise(self, id: str, priority: int | None = None, on_demand: bool | None = None) -> Change:
        """Change the *priority* (0..10, 10 highest) or the mode of a waiting job, or both; otherwise as `move`."""
        return self.change(id, MoveTarget(priority=priority, on_demand=on_demand))

    def change(self, id: str, wish: MoveTarget) -> Change:
        """Change type, priority and mode of a waiting job as *wish* says: `move` and `prioritise` in one."""
        job = self.known(id)
        if job.state not in ("scheduled", "pending") or job.job_id is None:
            return Change(id, job.state, False, _cannot_be_moved(job))
        job_id = job.job_id
        with self._reach() as fleet:
            where = job.cohort or fleet.names[0]
            outcome = fleet.act(where, lambda scheduler: actions.move_job(self.app, scheduler, [job_id], wish))
        (found,) = outcome.found
        if not found.waits:  # it went on just now
            job = self.known(id)
            return Change(id, job.state, False, _cannot_be_moved(job))
        with_it = f"; it is a run of {found.calls} calls, which go together" if found.calls > 1 else ""
        warning = f"; {outcome.warning}" if outcome.warning else ""
        return Change(id, job.state, True, f"moved: {wish}{with_it}{warning}")

    def retry(self, id: str) -> Change:
        """Run a dead letter again, as if it were published now: of merged calls all, and each gets the new end."""
        job = self.known(id)
        if job.state != "dead" or job.job_id is None:
            return Change(id, job.state, False, _CANNOT_BE_RETRIED.get(job.state, "it has not ended"))
        which = dead_letters.LetterFilter((job.job_id,))

        def replay(scheduler: Scheduler) -> list[str]:
            return scheduler.replay([letter.job_id for letter in dead_letters.find_letters(scheduler.reader, which)])

        with self._reach() as fleet:
            replayed = fleet.act(job.cohort or fleet.names[0], replay)
        with_it = f", with the other {job.calls - 1} of its run" if job.calls > 1 else ""
        note = f"published again{with_it}" if replayed else "its message is gone"
        return Change(id, job.state, bool(replayed), note)


def _cannot_be_moved(job: Job) -> str:
    if job.state in ("claimed", "running"):
        holder = f" {job.worker}" if job.worker else ""
        return f"worker{holder} has it already: {job.state}"
    if job.state == "dead":
        return "it is a dead letter, which waits for nothing"
    return _NEVER if job.state == "unknown" else f"it has ended: {job.state}"


_NEVER = "never published here, or forgotten"
_CANNOT_BE_CANCELLED = {
    "unknown": _NEVER,
    "dead": "it is a dead letter, which does not run unless somebody replays it",
    **{state: f"it has ended: {state}" for state in ("done", "failed", "revoked", "expired")},
}
_CANNOT_BE_RETRIED = {
    "unknown": _NEVER,
    **{
        state: f"it has ended: {state}; its message is gone, and only dead letters can be retried"
        for state in ("done", "revoked", "expired")
    },
    "failed": "it has ended: failed; its message is gone, and only dead letters can be retried: with "
    "affinity_keep_failed what failed is one",
}


def jobs(app: Celery) -> Jobs:
    """Return the jobs of *app*'s broker, by id."""
    return Jobs(app)
