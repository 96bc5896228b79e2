"""One claim: a job that a worker holds from its arrival until the server has confirmed its release.

Also the ports through which a membership uses the process around it: a Celery worker (package `worker`), or a test.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US
from ..scheduler.messages import Claim
from ..schema.constants import PREEMPTED

#: Outcomes of a message. UNSETTLED and ABORTED (a time limit, or the loss of the pool process, ended the run) count as
#: a delivery. REQUEUED (by the task) counts as a requeue. RETURNED and PREEMPTED (for another tenant's job) count as
#: neither. After ABORTED and REQUEUED, the job pauses before its next run.
ACKED, REJECTED, UNSETTLED, RETURNED = "acked", "rejected", "unsettled", "returned"
ABORTED, REQUEUED = "aborted", "requeued"

#: Outcomes that return the job to its queue.
WAITS_AGAIN = (UNSETTLED, ABORTED, REQUEUED, RETURNED, PREEMPTED)

#: Ends of a job whose message was acked, other than success. IGNORED: only the task knows whether it succeeded.
FAILED, REVOKED, EXPIRED, IGNORED = "failed", "revoked", "expired", "ignored"

#: Separates job id and fencing token in a delivery tag. The tags of stock messages are UUIDs, which contain no colon.
_SEPARATOR = ":"

#: Maps the outcome of a job that ended here to its kind of slot time (`histograms.RUNS`). Jobs with other outcomes run
#: again, or are dead letters.
_RUN_KINDS = {ACKED: "done", IGNORED: "done", FAILED: "failed", REVOKED: "revoked", EXPIRED: "expired"}


def delivery_tag(job_id: str, fence: str) -> str:
    return f"{job_id}{_SEPARATOR}{fence}"


def fence_of_tag(delivery_tag: object) -> int | None:
    """Return the fencing token in the delivery tag of a claim, or None for any other tag."""
    if not isinstance(delivery_tag, str):
        return None
    _, separator, fence = delivery_tag.rpartition(_SEPARATOR)
    return int(fence) if separator and fence.isascii() and fence.isdigit() else None


def claim_of_tag(delivery_tag: object) -> tuple[str, str] | None:
    """Return job id and fencing token in the delivery tag of a claim, or None for any other tag."""
    if not isinstance(delivery_tag, str) or fence_of_tag(delivery_tag) is None:
        return None
    job_id, _, fence = delivery_tag.rpartition(_SEPARATOR)
    return job_id, fence


def job_of_tag(delivery_tag: str) -> str:
    """Return the job id in the delivery tag of a claim that this process made."""
    return delivery_tag.rpartition(_SEPARATOR)[0]


def is_claim_tag(delivery_tag: str) -> bool:
    """Return True if a delivery tag belongs to a claim, and False for a message that kombu read from a list."""
    return _SEPARATOR in delivery_tag


class TaskRequest(Protocol):
    """Celery's request for the task of a claim, with the methods of the mixin `EndOfTask`."""

    id: str
    name: str
    is_in_the_pool: Callable[[], bool] | None
    worker_pid: Any
    task: Any

    @property
    def size(self) -> float | None:
        """The size of the call (option ``size``), or None if it is unknown."""

    def preempt(self) -> bool:
        """Stop the task and requeue its job. Return True if the task was running and could be stopped."""

    def fence(self) -> None:
        """Stop the task if the pool can, and report nothing about it."""

    def end_leaked(self) -> None:
        """Free the slot of a task whose end was not noticed."""


@dataclass
class HeldClaim:
    job_id: str
    fence: str
    type: str
    expires_us: int | None = None
    #: Time from the publish, or from the ETA, until the claim arrived.
    waited_us: int = 0
    #: Celery's request for the task; None until Celery has made one.
    request: TaskRequest | None = None
    #: Outcome of the message.
    outcome: str = UNSETTLED
    #: `FAILED`, `REVOKED`, `EXPIRED` or `IGNORED` if the message was acked and the job did not succeed; `RETURNED` if a
    #: batch's acked run must start again.
    how: str = ""
    #: Error text.
    why: str = ""
    #: True if the worker has lost the claim.
    void: bool = False
    held_since_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    slot_since_s: float | None = None
    ended_s: float | None = None
    enqueued_us: int = 0
    #: The job's own due time; None without one.
    due_us: int | None = None
    #: From the message, with *priority* in the app's order; None until the claim has a slot.
    on_demand: bool | None = None
    priority: object = None
    #: Recording in which the claim is already listed.
    opened_in: str = ""
    #: End of the grace period of a task that was asked to stop.
    stops_at_s: float | None = None
    #: True if the task has ended; `ClaimTable.end` follows.
    is_ending: bool = False
    #: True if the task's strategy buffers the message, so that the claim occupies no slot.
    is_buffered: bool = False

    def stop_within(self, grace_s: float) -> None:
        self.stops_at_s = time.monotonic() + grace_s

    @property
    def number(self) -> tuple[str, str]:
        return self.job_id, self.fence

    @property
    def in_words(self) -> str:
        """Task name and id as in Celery's log lines; the job's id if there is no request."""
        return f"Job {self.job_id}" if self.request is None else f"Task {self.request.name}[{self.request.id}]"

    @property
    def ended_how(self) -> str:
        """Outcome of the job: `how` if the message was acked and the job did not succeed, and `outcome` otherwise."""
        return self.how if self.how and self.outcome == ACKED else self.outcome

    @property
    def outcome_text(self) -> str:
        """Outcome in the format of `EndArguments`, followed by the error, or by the slot time in µs if `PREEMPTED`."""
        if self.ended_how == PREEMPTED:
            return f"{PREEMPTED} {self.in_slot_us}"
        return f"{self.ended_how} {self.why}" if self.why else self.ended_how

    @property
    def in_slot_us(self) -> int:
        """Slot time of an ended claim in µs. If it never had a slot, the time for which the worker held it."""
        assert self.ended_s is not None, "it has ended"
        return round((self.ended_s - (self.slot_since_s or self.held_since_s)) * SECOND_US)

    @property
    def run(self) -> tuple[str, int] | None:
        """Kind (`histograms.RUNS`) and length in µs of the slot time, or None if metrics exclude it."""
        kind = _RUN_KINDS.get(self.ended_how)
        if kind is None or self.ended_s is None or self.void or self.is_buffered:
            return None
        return kind, self.in_slot_us

    @property
    def succeeded(self) -> bool:
        """True if the task is known to have succeeded."""
        return self.ended_how == ACKED

    def described(self) -> dict[str, object]:
        """Return the facts that `inspect affinity` shows.

        age_s: seconds since the claim arrived
        running_s: seconds since the task started; None before the start
        grace_s: seconds until the pool kills a task that was asked to stop, if it can; None for other tasks
        buffered: True if the task's strategy buffers the job, so that the job occupies no slot
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
        """True if tasks run in forked processes."""

    @property
    def blocks_the_loop(self) -> bool:
        """True if tasks run in the event loop's own thread and block it."""

    @property
    def stops(self) -> str:
        """Tasks that the pool can stop: `FORCE` for all, or the encoded names of those that stop when asked to."""

    def size(self) -> int:
        """Return the number of tasks that can run at the same time: the worker's slots."""

    def unclaimed(self) -> int:
        """Return the number of requests that occupy a slot without a claim, such as broadcast tasks."""

    def still_has(self, request: object) -> bool:
        """Return True if *request* runs or will run; False for None. A lost connection makes Celery drop requests."""


class WorkerLoop(Protocol):
    """The worker's event loop and its actions on jobs. Any thread can call methods without a note to the contrary."""

    @property
    def in_flight(self) -> InFlightCommands | None:
        """The connection on which the event loop's thread sends without waiting for the reply.

        None in any other thread, while no event loop runs, and in a cold shutdown, where all jobs that the shutdown
        ends are counted before any of these ends is reported.
        """

    def wake(self) -> bool:
        """Make the event loop iterate soon. Return False if there is no event loop."""

    def limits_rate_of(self, task: str) -> bool:
        """Return True if *task* has a rate limit here."""

    def start_next(self) -> None:
        """Start a prefetched job if a slot is free, and raise nothing. Only the loop's thread calls this."""

    def wake_in(self, pause_s: float) -> None:
        """Make the event loop iterate in *pause_s* seconds. Only its thread calls this."""

    def deliver(self, claims: list[Claim]) -> None:
        """Make the event loop start jobs that arrived in a reply to another thread."""

    def fence(self, claims: list[HeldClaim]) -> None:
        """Stop the tasks of jobs that other workers now hold."""

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Do the host's part of a heartbeat. Return the seconds until the next one is needed, or None for no limit."""
