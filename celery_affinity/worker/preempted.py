"""``preempted()``, by which a task learns that it is to stop, and `Preempted`, by which it stops: in every pool.

The worker marks the claim of the task in memory that it shares with the processes that it forks. So a task that asks
reads memory, and nobody else pays. In a pool process that was spawned the answer is always False.
"""

import hashlib
import mmap
import threading
from collections.abc import Callable

from celery import current_task
from celery.exceptions import Ignore

from ..membership.held import fence_in

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


class Marks:
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
MARKS = Marks()

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
    if task is None or fence_in(tag) is None:
        return False
    for tell in on_asked:
        tell(task.name, str(tag))
    return MARKS.has(str(tag))
