"""``preempted()``, by which a task learns that it is to stop, and `Preempted`, by which it stops: in every pool.

The worker marks the claim of the task in memory that it shares with the processes that it forks. So a task that asks
reads memory, and nobody else pays. In a pool process that was spawned the answer is always False.

Stopping a task for a tenant below its minimum: first the task is asked, then, after a grace, stopped by force.

The server orders it with a sign in the inbox. Whatever the task does meanwhile counts: it may end, fail, or stop by
itself (`Preempted`). A worker that shuts down lets the graces be: its jobs end, or go back, as always.
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
from ..schema.constants import PREEMPT_SIGN, PREEMPTED
from .pool import PoolSlots

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

#: How many claims of this process can be marked at a time; the tasks of others are stopped without having been asked.
MOST_MARKED = 512

_BYTES = 8


class Preempted(Ignore):
    """Raised by a task that stops since it was asked to (`preempted`): its job waits again, as if it had not started.

    That counts as no delivery, and there is no result, no failure and no retry. A task that raises this error without
    having been asked gives its job back as well, and that counts as a requeue, as with ``Reject(requeue=True)``: a
    pause comes before the next run, and a task that does so each time becomes a dead letter. Of a task that is acked
    early the job ends, as with ``Ignore``.
    """


class PreemptionMarks:
    """The claims, by delivery tag, whose tasks are asked to stop. Forked processes see what this one marks later.

    Each place of the memory has a digest of a tag: the processes of several workers may share this memory.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MOST_MARKED * _BYTES)
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()

    def mark(self, tag: str, still_held: Callable[[str], bool]) -> None:
        """Mark a claim, and forget those that are not *still_held*."""
        with self._lock:
            for each in [each for each in self._places if not still_held(each)]:
                self._write(self._places.pop(each), bytes(_BYTES))
            taken = {*self._places.values()}
            place = next((place for place in range(MOST_MARKED) if place not in taken), None)
            if place is not None and tag not in self._places:
                self._places[tag] = place
                self._write(place, _digest(tag))

    def _write(self, place: int, digest: bytes) -> None:
        self._memory[place * _BYTES : (place + 1) * _BYTES] = digest

    def has(self, tag: str) -> bool:
        """Return whether a claim is marked, by this process or by the one that it was forked from."""
        return self._memory.find(_digest(tag), 0) >= 0


def _digest(tag: str) -> bytes:
    return hashlib.blake2b(tag.encode(), digest_size=_BYTES).digest()


#: Those of the workers of this process; the memory takes no room before the first mark.
MARKS = PreemptionMarks()

#: Functions to be called with the name and the delivery tag of a task that asks, by workers that cannot stop a task by
#: force: they say which tasks stop if they are asked to.
on_asked: list[Callable[[str, str], None]] = []


def preempted() -> bool:
    """Return whether the task that runs here is to stop, since another tenant needs its slot.

    The task should save what it has done, and ``raise Preempted``. It may also go on: a task that ends within the grace
    (``affinity_preemption_grace``) counts as any other. After the grace, a pool that can stop tasks stops it. False
    outside of tasks, and in a task that runs without a claim, such as a broadcast one.
    """
    task = current_task.app.current_worker_task if current_task else None  # not one that the task calls directly
    tag = (task.request.properties or {}).get("delivery_tag") if task is not None else None
    if task is None or fence_of_tag(tag) is None:
        return False
    for tell in on_asked:
        tell(task.name, str(tag))
    return MARKS.has(str(tag))


logger = limited_logger(__name__)

#: Interval, s, between two looks at a process that was ended, and the number of looks after which it is killed.
_LOOKS_AFTER_S, _KILLED_AFTER = 0.1, 20

#: Interval, s, at which a task that blocks the event loop may look for signs, and how many entries it looks at.
_LOOKS_EVERY_S, _LOOKS_AT = 0.5, 20


class Preemption:
    """Stops tasks of *consumer*, whose claims *members* has. The event loop's thread calls all methods but `asked`."""

    def __init__(self, consumer: "Consumer", members: Member, slots: PoolSlots) -> None:
        self._consumer, self._members, self._slots = consumer, members, slots
        self._claims = members.claims
        self._looks_again_s = 0.0

    def begin(self) -> None:
        """Answer tasks that ask whether they are to stop: called at the start and after each reconnect."""
        if not self._slots.stops_by_force and self.asked not in on_asked:
            on_asked.append(self.asked)
        for held in self._claims.held():
            if held.stops_at_s is not None:
                self._stop_later(held, held.stops_at_s - monotonic())  # Celery has dropped its timers

    def stop(self) -> None:
        """Answer tasks no longer: the worker has left the fleet."""
        if self.asked in on_asked:
            on_asked.remove(self.asked)

    def order(self, job_id: str, fence: str, grace_s: float) -> list[str]:
        """Have the task of a claim stop within *grace_s*. Return the tag if the job has not started, to be given back.

        Nothing is done for a job that has ended, or was asked before.
        """
        tag = delivery_tag(job_id, fence)
        held = self._claims.find(tag)
        if held is None or held.void or held.stops_at_s is not None or held.ended_s is not None:
            return []
        request = held.request
        if request is None:
            self._members.lookahead.discard(tag)
            return [tag]
        if held.is_buffered:
            logger.info("%s goes on: it cannot be taken out of the buffer of its task's strategy", held.in_words)
        elif held.started_s is None and not self._slots.still_has(request):  # it waits for a rate limit, say
            self._members.give_back([tag])
            state.task_ready(request)
        elif held.outcome != UNSETTLED or not request.task.acks_late:
            logger.warning("%s goes on: the job may not run again, since it was acked when it started", held.in_words)
        else:
            held.stop_within(grace_s)
            MARKS.mark(tag, lambda tag: self._claims.find(tag) is not None)
            self._stop_later(held, grace_s)
            logger.info("%s is to stop within %g s: another tenant is below its minimum", held.in_words, grace_s)
        return []

    def _stop_later(self, held: HeldClaim, pause_s: float) -> None:
        if self._slots.stops_by_force:
            self._consumer.timer.call_after(max(0.0, pause_s), self._stop, (held,))

    def _stop(self, held: HeldClaim) -> None:
        """Stop a task by force. One that has ended meanwhile is left alone."""
        if held.request is not None and held.ended_s is None and held.request.preempt() and self._slots.forks:
            self._see_to_its_end(held, _KILLED_AFTER)

    def _see_to_its_end(self, held: HeldClaim, tries: int) -> None:
        """Have the pool notice soon that a process has ended, and kill one that has not: a task may handle a signal.

        Celery sees the end of a process before the system says how it ended, and then looks again 5 s later.
        """
        if held.request is None or held.ended_s is not None or tries < -_KILLED_AFTER:
            return
        if tries == 0:
            self._consumer.pool.terminate_job(held.request.worker_pid, signal.SIGKILL)
        self._consumer.pool.maintain_pool()
        self._consumer.timer.call_after(_LOOKS_AFTER_S, self._see_to_its_end, (held, tries - 1))

    # -- tasks that ask, in the thread of the task

    def asked(self, name: str, tag: str) -> None:
        """Have the server know that tasks of this *name* stop if they are asked to. A task that asks is running."""
        held = self._claims.find(tag)
        if held is None:
            return
        if self._slots.stops_when_asked(name):
            self._members.rejoin()
        if self._slots.blocks_the_loop and held.stops_at_s is None:
            self._look(held)

    def _look(self, held: HeldClaim) -> None:
        """Look for the sign of a stop, which the event loop cannot read while the task blocks the loop."""
        now_s = monotonic()
        if now_s < self._looks_again_s:
            return
        self._looks_again_s = now_s + _LOOKS_EVERY_S
        own = f"\n{PREEMPT_SIGN} {held.job_id} {held.fence} ".encode()
        client, inbox = self._members.scheduler.client, self._claims.inbox
        try:
            for each in client.lrange(inbox, -_LOOKS_AT, -1):
                grace_ms = each.removeprefix(own)
                if grace_ms != each and grace_ms.isdigit() and client.lrem(inbox, 1, each):
                    self.order(held.job_id, held.fence, int(grace_ms) / 1000)
        except (RedisError, OSError):
            return  # the task asks again


def is_preemption_requested(held: HeldClaim | None) -> bool:
    """Return whether the task of a claim was asked to stop, so that its job may be given back as `PREEMPTED`."""
    return held is not None and held.stops_at_s is not None and held.outcome in (UNSETTLED, PREEMPTED)
