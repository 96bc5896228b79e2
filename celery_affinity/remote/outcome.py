"""An end as a worker tells it, and the note of it in Redis, by which a repeated request gets the same reply."""

import hashlib
import json
from dataclasses import asdict, dataclass

from celery.utils.serialization import create_exception_cls

from ..callers.failure import words
from ..membership.held import REQUEUED
from ..rules.protocol import PREEMPTED
from ..rules.rows import text_of
from ..server.scheduler import Scheduler
from .claims import StaleClaimError

#: Time, s, for which an end is known that may be repeated.
_KEPT_S = 3600

#: What a worker says of an end -> the state of the job after it.
STATES = {"done": "done", "failed": "failed", "revoked": "revoked", "returned": "pending", PREEMPTED: "pending"}


@dataclass(frozen=True)
class ErrorSaid:
    """An exception, in words."""

    type: str
    message: str
    traceback: str | None = None

    @property
    def exception(self) -> Exception:
        kind: type[Exception] = create_exception_cls(self.type, "remote")
        return kind(self.message)


@dataclass(frozen=True)
class Outcome:
    """An end. *state*: one of `STATES`. *requeue*: a failure of which no caller hears: the job runs again.

    A failure that is requeued counts as a requeue, and a pause comes before the next run. A job that is returned, since
    it was not begun, counts none; nor does one that was stopped because the server asked for that.
    """

    state: str
    result: object = None
    error: ErrorSaid | None = None
    requeue: bool = False

    @property
    def runs_again(self) -> bool:
        return self.requeue or self.state in ("returned", PREEMPTED)

    @property
    def state_after(self) -> str:
        return "pending" if self.runs_again else STATES[self.state]

    @property
    def in_words(self) -> str:
        """The outcome as the release takes it."""
        how = {"done": "acked", "failed": REQUEUED if self.requeue else "failed"}.get(self.state, self.state)
        return f"{how} {words(self.error.exception)}" if self.error else how

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Note:
    """What Redis has of an end. *state*: of the job after it; "" while callers are told. *said*: for the release."""

    job_id: str
    worker: str
    digest: str
    state: str = ""
    said: str = ""

    @classmethod
    def read(cls, scheduler: Scheduler, job_id: str, fence: int) -> "Note | None":
        found = scheduler.client.get(_key(scheduler, fence))
        note = None if found is None else cls(**json.loads(text_of(found)))
        return note if note is not None and note.job_id == job_id else None

    def begin(self, scheduler: Scheduler, fence: int) -> None:
        """Note that callers are about to be told."""
        scheduler.client.set(_key(scheduler, fence), json.dumps(asdict(self)), ex=_KEPT_S, nx=True)

    def write(self, scheduler: Scheduler, fence: int) -> None:
        """Note that callers were told."""
        scheduler.client.set(_key(scheduler, fence), json.dumps(asdict(self)), ex=_KEPT_S)

    def check(self, outcome: Outcome) -> None:
        """Raise StaleClaimError for another end than this one."""
        if self.digest != outcome.digest:
            raise StaleClaimError(f"another end of job {self.job_id} was told before: an end is repeated as it was")


def _key(scheduler: Scheduler, fence: int) -> str:
    return scheduler.keys.key("remote_end", str(fence))
