"""``celery_affinity.jobs(app)``: query and change jobs by id."""

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
from ..schema.constants import MAX_KEPT_MESSAGE_BYTES
from ..transport.app_api import fleet_of
from . import actions, job_values
from .actions import JobFilters, MoveTarget, can_terminate_error
from .job_values import JobValues

#: Opens the cohorts of an app as a context manager.
Reach = Callable[[], AbstractContextManager[Cohorts]]


@dataclass(frozen=True)
class Change:
    """The outcome of a change of a job: *done*, and the state in which the job was *found*.

    *note*: what was done, or why nothing was done, as text.
    """

    id: str
    found: str
    done: bool
    note: str


class Jobs:
    """The jobs of *app*'s broker. *reach*: a connection to the broker. None: a connection of the app's pool.

    Each method raises TransportError if the app uses another transport, and kombu's OperationalError if the broker does
    not answer within 5 s plus ``broker_connection_timeout``.
    """

    def __init__(self, app: Celery, reach: Reach | None = None) -> None:
        self.app = app
        self._reach = reach or (lambda: fleet_of(app))

    def get(self, id: str) -> Job:
        """Return the facts of the newest job of the task *id*.

        If the job is no longer in Redis, the app's result backend is read. A job that is in neither is "unknown".
        """
        job = self.known(id)
        return job if job.source else job_values.backend_of_job(self.app, id)

    def known(self, id: str) -> Job:
        """Return the same as `get`, without the result backend: ended jobs are found for `affinity_keep` seconds."""
        return self.known_many([id])[0]

    def known_many(self, ids: Sequence[str]) -> Sequence[Job]:
        """Return the result of `known` for each of *ids*, in as many round trips as for one."""
        with self._reach() as fleet:
            return cohorts.jobs_of_all(fleet, ids)

    def values(self, id: str) -> JobValues:
        """Return the arguments of the job *id*, and its result or its exception and traceback, if available."""
        job = self.known(id)
        with self._reach() as fleet:
            values = job_values.message_arguments(fleet, job)
        return job_values.with_result(self.app, id, values)

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
        """Return a page of unfinished jobs and dead letters. Raises OptionError.

        - *state*: one of `job_lists.LISTED`.
        - *task*: a name, in which ``*`` matches any characters.
        - *cursor*: the cursor of the previous page.
        - *stamp*: "name=value". Merged calls are then listed separately, otherwise as one run.
        - *older_than_s*, *newer_than_s*: only jobs enqueued at least, or at most, this many seconds ago.
        - *key*: only jobs of this key.
        - *argument*: "name=value", an argument by name or by position (``args[0]``), with the value as written by
          ``str``. A ``*`` matches any characters. Merged calls match if all calls of the run match.
        - *cohort*: only jobs of this cohort.

        With a filter, a page reads at most 1,000 jobs and 16 MB of messages, and is `partial` if it stopped there.
        """
        filters = JobFilters(state, type, task, stamp, key, older_than_s, newer_than_s, argument)
        with self._reach() as fleet:
            names = fleet.serving(type, cohort)
            return cohorts.page_of_all(fleet, lambda reader: filters.of(self.app, reader), names, limit, cursor)

    def cancel(self, id: str, terminate: bool = False, *, connection: Connection | None = None) -> Change:
        """Revoke a job: a waiting job ends immediately, and a claimed job does not start.

        *terminate*: also terminate a running job, if the pool can. *connection*: used for the broadcast to workers.
        """
        job = self.known(id)
        if job.state == "unknown" or job.has_ended:
            return Change(id, job.state, False, _CANNOT_BE_CANCELLED[job.state])
        if job.state == "running" and not terminate:
            return Change(id, job.state, False, f"it runs on {job.worker}: only terminate ends it")
        ends = "it does not start"
        if job.state == "running":
            pools = can_terminate_error(self.app, [job.worker], connection)
            if pool := pools.get(job.worker or ""):
                until = "it continues until it ends or its worker is killed"
                note = f"it runs on {job.worker}, whose pool, {pool}, cannot end a task: {until}"
                return Change(id, job.state, False, note)
            ends = "its worker was ordered to end it"
            ends += "" if pools else "; the worker did not say whether its pool can"
        # The transport revokes waiting jobs when it sends the broadcast.
        self.app.control.revoke(job.id, terminate=terminate, connection=connection)
        return Change(id, job.state, True, f"revoked: {ends}")

    def move(self, id: str, type: str) -> Change:
        """Change the *type* of a waiting job, which keeps its first enqueue time.

        A retry of the task gets the new type as well. Merged calls move with their run. Raises OptionError.
        """
        return self.change(id, MoveTarget(type=type))

    def prioritise(self, id: str, priority: int | None = None, on_demand: bool | None = None) -> Change:
        """Change the *priority* (0 to 10, 10 is the highest) or the mode of a waiting job, or both, like `move`."""
        return self.change(id, MoveTarget(priority=priority, on_demand=on_demand))

    def change(self, id: str, wish: MoveTarget) -> Change:
        """Change type, priority and mode of a waiting job to *wish*: `move` and `prioritise` in one call."""
        job = self.known(id)
        if job.state not in ("scheduled", "pending") or job.job_id is None:
            return Change(id, job.state, False, _cannot_be_moved(job))
        job_id = job.job_id
        with self._reach() as fleet:
            cohort = job.cohort or fleet.names[0]
            outcome = fleet.act(cohort, lambda scheduler: actions.move_job(self.app, scheduler, [job_id], wish))
        (previous,) = outcome.found
        if not previous.waits:  # it has just changed its state
            job = self.known(id)
            return Change(id, job.state, False, _cannot_be_moved(job))
        with_it = f"; it is a run of {previous.calls} calls, which go together" if previous.calls > 1 else ""
        warning = f"; {outcome.warning}" if outcome.warning else ""
        return Change(id, job.state, True, f"moved: {wish}{with_it}{warning}")

    def retry(self, id: str) -> Change:
        """Run a dead letter again, or a failed job that `affinity_keep` keeps, as if it were published now.

        All merged calls of a dead letter run again and get the new result. The message of a failed job is kept up to
        16,384 bytes.
        """
        job = self.known(id)
        if job.state not in ("dead", "failed") or job.job_id is None:
            return Change(id, job.state, False, _CANNOT_BE_RETRIED.get(job.state, "it has not ended"))
        which, failed = dead_letters.LetterFilter((job.job_id,)), job.state == "failed"

        def replay(scheduler: Scheduler) -> list[str]:
            letters = dead_letters.find_letters(scheduler.reader, which, failed=failed)
            return scheduler.replay([letter.job_id for letter in letters])

        with self._reach() as fleet:
            replayed = fleet.act(job.cohort or fleet.names[0], replay)
        with_it = f", with the other {job.calls - 1} of its run" if job.calls > 1 else ""
        note = f"published again{with_it}" if replayed else _FAILED if failed else "its message was deleted"
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
    "dead": "it is a dead letter, which does not run until it is replayed",
    **{state: f"it has ended: {state}" for state in ("done", "failed", "revoked", "expired")},
}
_CANNOT_BE_RETRIED = {
    "unknown": _NEVER,
    **{
        state: f"it has ended: {state}; its message was deleted, and only dead letters and failed jobs can be retried"
        for state in ("done", "revoked", "expired")
    },
}
_FAILED = (
    "it has ended: failed; its message was deleted. affinity_keep above 60 s keeps messages of failed jobs up to "
    f"{MAX_KEPT_MESSAGE_BYTES:,} bytes; with affinity_keep_failed a failed job is a dead letter"
)


def jobs(app: Celery) -> Jobs:
    """Return the jobs of *app*'s broker, by id."""
    return Jobs(app)
