"""Preempt running tasks: request a stop first (``preempted()``), and stop the task by force after a grace period.

A task can also stop by itself, by raising `Preempted`. The request is a mark in memory that the worker shares with the
processes that it forks, so only tasks that check it pay, by reading memory. In a spawned pool process, ``preempted()``
is always False.
"""

import hashlib
import mmap
import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from celery import current_task
from celery.exceptions import Ignore
from celery.worker import state
from redis.exceptions import RedisError

from ..leases.held_claim import UNSETTLED, HeldClaim, delivery_tag, fence_of_tag
from ..leases.member import Member
from ..log_limit import limited_logger
from ..schema.constants import PREEMPT_SIGN
from .pool import PoolSlots

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

#: Maximum number of marked claims of this process. Further tasks are stopped without a request.
MAX_MARKED = 512

_BYTES = 8


class Preempted(Ignore):
    """Raised by a task that stops on request (`preempted`): its job is requeued as if it had not started.

    No delivery is counted, and there is no result, no failure and no retry. A task that raises this error without a
    request is requeued too, like with ``Reject(requeue=True)``: a pause precedes the next run, and a task that always
    does so becomes a dead letter. If the task is acked early, its job ends, as with ``Ignore``.
    """


class PreemptionMarks:
    """The delivery tags of claims whose tasks must stop. Forked processes also see later marks of this process.

    Each entry in memory is the digest of a tag, because the processes of several workers can share this memory.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MAX_MARKED * _BYTES)
        self._index_by_tag: dict[str, int] = {}
        self._lock = threading.Lock()

    def mark(self, tag: str, still_held: Callable[[str], bool]) -> None:
        """Mark a claim, and delete the marks of claims that are not *still_held*."""
        with self._lock:
            for marked in [marked for marked in self._index_by_tag if not still_held(marked)]:
                self._write(self._index_by_tag.pop(marked), bytes(_BYTES))
            used = {*self._index_by_tag.values()}
            index = next((index for index in range(MAX_MARKED) if index not in used), None)
            if index is not None and tag not in self._index_by_tag:
                self._index_by_tag[tag] = index
                self._write(index, _digest(tag))

    def _write(self, index: int, digest: bytes) -> None:
        self._memory[index * _BYTES : (index + 1) * _BYTES] = digest

    def has(self, tag: str) -> bool:
        """Return True if a claim is marked, by this process or by the process that it was forked from."""
        return self._memory.find(_digest(tag), 0) >= 0


def _digest(tag: str) -> bytes:
    return hashlib.blake2b(tag.encode(), digest_size=_BYTES).digest()


#: The marks of the workers in this process. They use no memory before the first mark.
MARKS = PreemptionMarks()
#: Called with the name and the delivery tag of a task that calls `preempted`. Registered by workers that cannot stop a
#: task by force, which report to the server which tasks stop on request.
on_asked: list[Callable[[str, str], None]] = []


def preempted() -> bool:
    """Return True if the current task must stop, because another tenant needs its slot.

    The task should save its progress and ``raise Preempted``. It may also continue: a task that ends within the grace
    (``affinity_preemption_grace``) ends normally. After the grace, a pool that can stop tasks stops it. Returns False
    outside of tasks, and in a task without a claim, such as a broadcast task.
    """
    task = current_task.app.current_worker_task if current_task else None  # not a task that this task calls directly
    tag = (task.request.properties or {}).get("delivery_tag") if task is not None else None
    if task is None or fence_of_tag(tag) is None:
        return False
    for report in on_asked:
        report(task.name, str(tag))
    return MARKS.has(str(tag))


logger = limited_logger(__name__)
#: Seconds between two checks of a process that was signalled to end, and the number of checks before it is killed.
_CHECK_INTERVAL_S, _CHECKS_BEFORE_KILL = 0.1, 20
#: Seconds between two searches for control messages by a task that blocks the event loop; number of items searched.
_INBOX_INTERVAL_S, _MAX_INBOX_ITEMS = 0.5, 20


class Preemption:
    """Stops tasks of *consumer* whose claims *member* has, when a control message from the server orders it.

    Until then, the task may end, fail, or stop by itself (`Preempted`). A worker that shuts down ignores the graces:
    its jobs end or are requeued, as always. All methods except `asked` run in the event loop's thread.
    """

    def __init__(self, consumer: "Consumer", member: Member, slots: PoolSlots) -> None:
        self._consumer, self._member, self._slots = consumer, member, slots
        self._claims = member.claims
        self._next_check_s = 0.0

    def begin(self) -> None:
        """Register for tasks that call `preempted`, and restart timers, at the start and after each reconnect."""
        if not self._slots.stops_by_force and self.asked not in on_asked:
            on_asked.append(self.asked)
        for claim in self._claims.held_claims():
            if claim.stops_at_s is not None:
                self._stop_later(claim, claim.stops_at_s - monotonic())  # Celery has dropped its timers

    def stop(self) -> None:
        """Unregister, because the worker has left the fleet."""
        if self.asked in on_asked:
            on_asked.remove(self.asked)

    def order(self, job_id: str, fence: str, grace_s: float) -> list[str]:
        """Request the stop of a claim's task within *grace_s*. Return the tag if the job must be returned unstarted.

        Does nothing if the job has ended, or if the stop was requested before.
        """
        tag = delivery_tag(job_id, fence)
        claim = self._claims.find(tag)
        if claim is None or claim.void or claim.stops_at_s is not None or claim.ended_s is not None:
            return []
        request = claim.request
        if request is None:
            self._member.lookahead.discard(tag)
            return [tag]
        if claim.is_buffered:
            logger.info("%s continues: it cannot be taken out of the buffer of its task's strategy", claim.in_words)
        elif claim.started_s is None and not self._slots.still_has(request):  # for example, it waits for a rate limit
            self._member.reporter.give_back([tag])
            state.task_ready(request)
        elif claim.outcome != UNSETTLED or not request.task.acks_late:
            logger.warning(
                "%s continues: the job must not run again, because it was acked when it started", claim.in_words
            )
        else:
            claim.stop_within(grace_s)
            MARKS.mark(tag, lambda tag: self._claims.find(tag) is not None)
            self._stop_later(claim, grace_s)
            logger.info("%s must stop within %g s: another tenant is below its minimum", claim.in_words, grace_s)
        return []

    def _stop_later(self, claim: HeldClaim, pause_s: float) -> None:
        if self._slots.stops_by_force:
            self._consumer.timer.call_after(max(0.0, pause_s), self._stop, (claim,))

    def _stop(self, claim: HeldClaim) -> None:
        """Stop a task by force, unless it has ended."""
        if claim.request is not None and claim.ended_s is None and claim.request.preempt() and self._slots.forks:
            self._ensure_end(claim, _CHECKS_BEFORE_KILL)

    def _ensure_end(self, claim: HeldClaim, tries: int) -> None:
        """Make the pool notice soon that a process has ended. Kill a process that has not: a task can handle a signal.

        Celery sees the end of a process before the system reports the exit status, and then checks again 5 s later.
        """
        if claim.request is None or claim.ended_s is not None or tries < -_CHECKS_BEFORE_KILL:
            return
        if tries == 0:
            self._consumer.pool.terminate_job(claim.request.worker_pid, signal.SIGKILL)
        self._consumer.pool.maintain_pool()
        self._consumer.timer.call_after(_CHECK_INTERVAL_S, self._ensure_end, (claim, tries - 1))

    # -- tasks that call `preempted`, in the task's thread
    def asked(self, name: str, tag: str) -> None:
        """Record and report to the server that tasks with this *name* stop on request."""
        claim = self._claims.find(tag)
        if claim is None:
            return
        if self._slots.stops_when_asked(name):
            self._member.rejoin()
        if self._slots.blocks_the_loop and claim.stops_at_s is None:
            self._find_stop_order(claim)

    def _find_stop_order(self, claim: HeldClaim) -> None:
        """Search the inbox for a stop order, which the event loop cannot read while the task blocks the loop."""
        now_s = monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _INBOX_INTERVAL_S
        prefix = f"\n{PREEMPT_SIGN} {claim.job_id} {claim.fence} ".encode()
        client, inbox = self._member.scheduler.client, self._claims.inbox
        try:
            for item in client.lrange(inbox, -_MAX_INBOX_ITEMS, -1):
                grace_ms = item.removeprefix(prefix)
                if grace_ms != item and grace_ms.isdigit() and client.lrem(inbox, 1, item):
                    self.order(claim.job_id, claim.fence, int(grace_ms) / 1000)
        except (RedisError, OSError):
            return  # the task checks again
