"""One claim: a job that a worker holds, from its arrival until the server knows of its end.

The process around a worker's membership, as the membership needs it: a Celery worker (room `worker`), or a test.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US
from ..scheduler.messages import Claim
from ..schema.constants import PREEMPTED

#: Outcomes of a message. UNSETTLED and ABORTED (a time limit or the loss of the pool process ended the run) count as a
#: delivery. REQUEUED (by the task) counts as a requeue. RETURNED and PREEMPTED (for another tenant's job) count as
#: neither. After ABORTED and REQUEUED, the job pauses before its next run.
ACKED, REJECTED, UNSETTLED, RETURNED = "acked", "rejected", "unsettled", "returned"
ABORTED, REQUEUED = "aborted", "requeued"

#: Outcomes that return the job to its queue.
WAITS_AGAIN = (UNSETTLED, ABORTED, REQUEUED, RETURNED, PREEMPTED)

#: Ends of a job whose message was acked, except a good end. IGNORED: the task alone knows whether it succeeded.
FAILED, REVOKED, EXPIRED, IGNORED = "failed", "revoked", "expired", "ignored"

#: Separator of job id and fencing number in a delivery tag. The tags of stock messages are uuids, which have no colon.
_SEPARATOR = ":"

#: Outcome of a job that ended here -> the kind of its time in a slot (`rules.metrics.RUNS`). Others have none: those
#: jobs run again, or are dead letters.
_KINDS_OF_RUNS = {ACKED: "done", IGNORED: "done", FAILED: "failed", REVOKED: "revoked", EXPIRED: "expired"}


def delivery_tag(job_id: str, fence: str) -> str:
    """Return the delivery tag of a claim."""
    return f"{job_id}{_SEPARATOR}{fence}"


def fence_of_tag(delivery_tag: object) -> int | None:
    """Return the fencing number in the delivery tag of a claim; None if it is none."""
    if not isinstance(delivery_tag, str):
        return None
    _, separator, fence = delivery_tag.rpartition(_SEPARATOR)
    return int(fence) if separator and fence.isascii() and fence.isdigit() else None


def claim_of_tag(delivery_tag: object) -> tuple[str, str] | None:
    """Return job id and fencing number in the delivery tag of a claim; None if it is none."""
    if not isinstance(delivery_tag, str) or fence_of_tag(delivery_tag) is None:
        return None
    job_id, _, fence = delivery_tag.rpartition(_SEPARATOR)
    return job_id, fence


def job_of_tag(delivery_tag: str) -> str:
    """Return the job id in the delivery tag of a claim that this process made."""
    return delivery_tag.rpartition(_SEPARATOR)[0]


def is_claim_tag(delivery_tag: str) -> bool:
    """Return whether a delivery tag is that of a claim (and not of a message that kombu read from a list)."""
    return _SEPARATOR in delivery_tag


class TaskRequest(Protocol):
    """Celery's request for the task of a claim, with the methods that the mixin `EndOfTask` adds."""

    id: str
    name: str
    is_in_the_pool: Callable[[], bool] | None
    worker_pid: Any
    task: Any

    def preempt(self) -> bool:
        """Stop the task, and have its job wait again. Return whether it was still running, and could be stopped."""

    def fence(self) -> None:
        """Stop the task, where the pool can, and tell nothing of it."""

    def end_leaked(self) -> None:
        """Free the slot of a task whose end nobody noticed."""


@dataclass
class HeldClaim:
    """A claim. *request*: Celery's request for the task; None until Celery has made one.

    *outcome*: what became of the message. *how*: `FAILED`, `REVOKED`, `EXPIRED` or `IGNORED` if the message was acked
    and the job did not end well; `RETURNED` if a run of merged calls is to begin again although it was acked. *why*:
    the error, in words. *void*: whether the claim is known to be the worker's no more. *waited_us*: time from the
    publish, or the ETA, until the claim arrived here. *on_demand*, *priority*: as its message says, the latter as the
    app counts it; None before it has a slot. *opened_in*: the recording that names the claim already. *stops_at_s*: the
    end of the grace of a task that was asked to stop. *is_ending*: whether the task has ended: `Claims.end` follows.
    *is_buffered*: True if the task's strategy buffers the message, so that the claim occupies no slot.
    """

    job_id: str
    fence: str
    type: str
    expires_us: int | None = None
    waited_us: int = 0
    request: TaskRequest | None = None
    outcome: str = UNSETTLED
    how: str = ""
    why: str = ""
    void: bool = False
    held_since_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    slot_since_s: float | None = None
    ended_s: float | None = None
    enqueued_us: int = 0
    on_demand: bool | None = None
    priority: object = None
    opened_in: str = ""
    stops_at_s: float | None = None
    is_ending: bool = False
    is_buffered: bool = False

    def stop_within(self, grace_s: float) -> None:
        """Record that the task was asked to stop within that time."""
        self.stops_at_s = time.monotonic() + grace_s

    @property
    def number(self) -> tuple[str, str]:
        return self.job_id, self.fence

    @property
    def in_words(self) -> str:
        """The task and its id, as Celery's log lines have them; the job's id as long as there is no request."""
        return f"Job {self.job_id}" if self.request is None else f"Task {self.request.name}[{self.request.id}]"

    @property
    def ended_how(self) -> str:
        """What became of the job: the outcome, or, of an acked message, how its job did not end well."""
        return self.how if self.how and self.outcome == ACKED else self.outcome

    @property
    def told(self) -> str:
        """The outcome as `End` has it, followed by the error; by the time in the slot, µs, of a `PREEMPTED` claim."""
        if self.ended_how == PREEMPTED:
            return f"{PREEMPTED} {self.in_slot_us}"
        return f"{self.ended_how} {self.why}" if self.why else self.ended_how

    @property
    def in_slot_us(self) -> int:
        """How long a claim that has ended had its slot, µs; of a claim without a slot, how long the worker held it."""
        assert self.ended_s is not None, "it has ended"
        return round((self.ended_s - (self.slot_since_s or self.held_since_s)) * SECOND_US)

    @property
    def run(self) -> tuple[str, int] | None:
        """The kind (`rules.metrics.RUNS`) and the length, µs, of the time in a slot; None if it does not count."""
        kind = _KINDS_OF_RUNS.get(self.ended_how)
        if kind is None or self.ended_s is None or self.void or self.is_buffered:
            return None
        return kind, self.in_slot_us

    def described(self) -> dict[str, object]:
        """Return the facts that `inspect affinity` shows.

        *age_s*: time since the claim arrived. *running_s*: time since the task started; None before the start.
        *grace_s*: time until a task that was asked to stop is stopped by force, if the pool can; None for other tasks.
        *buffered*: True if the task's strategy buffers the job, so that the job occupies no slot.
        """
        now_s = time.monotonic()
        return {
            "job": self.job_id,
            "task": getattr(self.request, "id", None),
            "name": getattr(self.request, "name", None),
            "type": self.type,
            "age_s": round(now_s - self.held_since_s, 3),
            "running_s": None if self.started_s is None else round(now_s - self.started_s, 3),
            "grace_s": None if self.stops_at_s is None else round(max(0.0, self.stops_at_s - now_s), 3),
            "buffered": self.is_buffered,
        }


class PoolPort(Protocol):
    """The pool that runs a worker's tasks."""

    @property
    def forks(self) -> bool:
        """Whether tasks run in processes that are forked."""

    @property
    def blocks_the_loop(self) -> bool:
        """Whether a task runs in the event loop's own thread, so that nothing else happens there meanwhile."""

    @property
    def stops(self) -> str:
        """Which tasks the pool can stop: `FORCE` for all, or the encoded names of those that stop when asked to."""

    def size(self) -> int:
        """Return how many tasks may run at a time: the worker's slots."""

    def unclaimed(self) -> int:
        """Return how many requests take a slot without a claim: broadcast tasks, for one."""

    def still_has(self, request: object) -> bool:
        """Return whether *request* runs now or will; False for None. At a lost connection Celery drops the others."""


class WorkerLoop(Protocol):
    """The event loop of a worker, and what happens there to jobs. Any thread may call these methods."""

    @property
    def in_flight(self) -> InFlightCommands | None:
        """The connection on which the event loop's thread sends and does not wait for the reply.

        None in any other thread, while no event loop runs, and in a cold shutdown: the jobs that the shutdown ends are
        counted before any of these ends is told.
        """

    def wake(self) -> bool:
        """Have the event loop iterate soon. Return whether there is one."""

    def limits_rate_of(self, task: str) -> bool:
        """Return whether *task* has a rate limit here."""

    def start_next(self) -> None:
        """Start a job that is held ahead, if there is a slot, and raise nothing; called in the loop's thread alone."""

    def wake_in(self, pause_s: float) -> None:
        """Have the event loop iterate in *pause_s* seconds; called in its thread alone."""

    def deliver(self, claims: list[Claim]) -> None:
        """Have the event loop start jobs that came in a reply to another thread."""

    def fence(self, claims: list[HeldClaim]) -> None:
        """Stop the tasks of jobs that other workers have by now."""

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Do the host's part of a heartbeat. Return the seconds until the next one is needed; None: no hurry."""
