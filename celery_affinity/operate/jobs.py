"""``celery_affinity.jobs(app)``: jobs by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from celery import Celery
from kombu import Connection

from ..observe import job_lists
from ..observe import jobs as facts
from ..observe.job_lists import Filter, Page
from ..observe.jobs import Job
from ..server.scheduler import Scheduler
from ..transport.reach import scheduler_of
from . import backend

#: The way to the scheduler of an app, which is open for a while.
Reach = Callable[[], AbstractContextManager[Scheduler]]


@dataclass(frozen=True)
class Change:
    """What came of a change of a job: whether it was *done*, and the state in which the job was *found*.

    *note*: in words what was done, or why nothing was.
    """

    id: str
    found: str
    done: bool
    note: str


class Jobs:
    """The jobs of *app*'s broker. *reach*: the way there; None: a connection of the app's own pool.

    Each method raises TransportError if the app uses another transport, and kombu's OperationalError if the broker
    does not answer: after 5 s, plus ``broker_connection_timeout`` at most.
    """

    def __init__(self, app: Celery, reach: Reach | None = None) -> None:
        self.app = app
        self._reach = reach or (lambda: scheduler_of(app))

    def get(self, id: str) -> Job:
        """Return the facts of the newest job of the task *id*.

        Of a job that Redis has forgotten the app's result backend is asked; one that neither knows is "unknown".
        """
        found = self.known(id)
        return found if found.source else backend.job(self.app, id)

    def known(self, id: str) -> Job:
        """Return what `get` does, without the result backend: of an ended job only for a minute."""
        with self._reach() as scheduler:
            return facts.get(scheduler.reader, id)

    def known_many(self, ids: Sequence[str]) -> Sequence[Job]:
        """Return what `known` does of each of *ids*, in as many round trips as of one."""
        with self._reach() as scheduler:
            return facts.get_many(scheduler.reader, ids)

    def list(
        self,
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of the jobs that have not ended, and of the dead letters.

        *state*: one of `job_lists.LISTED`. *task*: a name, ``*`` stands for anything; of the jobs of all tasks 1,000 at
        most are read for one page, which then says that it is `partial`. *cursor*: that of the page before. Calls that
        were merged are listed as their run. Raises OptionError.
        """
        with self._reach() as scheduler:
            return job_lists.page_of(scheduler.reader, Filter(state, type, task), limit, cursor)

    def cancel(self, id: str, terminate: bool = False, *, connection: Connection | None = None) -> Change:
        """Revoke a job: one that waits ends at once, one that a worker holds does not start.

        *terminate*: one that runs is ended as well, where the pool can. *connection*: the one to tell workers by.
        """
        job = self.known(id)
        if job.state == "unknown" or job.has_ended:
            return Change(id, job.state, False, _CANNOT_BE_CANCELLED[job.state])
        if job.state == "running" and not terminate:
            return Change(id, job.state, False, f"it runs on {job.worker}; with terminate it is ended")
        # The transport revokes what waits when it sends the broadcast.
        self.app.control.revoke(job.id, terminate=terminate, connection=connection)
        ends = "its worker was told to end it" if job.state == "running" else "it does not start"
        return Change(id, job.state, True, f"revoked: {ends}")

    def retry(self, id: str) -> Change:
        """Have a dead letter run again, as if it were published now."""
        job = self.known(id)
        if job.state != "dead" or job.job_id is None:
            return Change(id, job.state, False, _CANNOT_BE_RETRIED.get(job.state, "it has not ended"))
        with self._reach() as scheduler:
            replayed = scheduler.replay([job.job_id])
        note = "published again" if replayed else "its message is gone"
        return Change(id, job.state, bool(replayed), note)


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
        for state in ("done", "failed", "revoked", "expired")
    },
}


def jobs(app: Celery) -> Jobs:
    """Return the jobs of *app*'s broker, by id."""
    return Jobs(app)
