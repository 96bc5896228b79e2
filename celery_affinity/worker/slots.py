"""Celery's pool, as the worker's membership in the fleet sees it (`Pool`)."""

from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool

from ..rules.encoding import encode
from ..rules.protocol import FORCE
from . import pools, unclaimed
from .buffers import BufferedRequest
from .other_runs import OtherRuns

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


#: How many tasks the server is told of at most that stop when they are asked to.
_MOST_ASKING = 50


class PoolSlots:
    """The pool of *consumer*, of any kind."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer
        self._asking: list[str] = []

    @property
    def forks(self) -> bool:
        return pools.forks(self._consumer.pool)

    @property
    def blocks_the_loop(self) -> bool:
        return isinstance(self._consumer.pool, SoloPool)

    @property
    def stops_by_force(self) -> bool:
        return getattr(self._consumer.pool.terminate_job, "__func__", None) is not BasePool.terminate_job

    @property
    def stops(self) -> str:
        return FORCE if self.stops_by_force else " ".join(map(encode, self._asking))

    def stops_when_asked(self, task: str) -> bool:
        """Record that tasks of this name ask whether they are to stop. Return whether that is new."""
        is_new = task not in self._asking and len(self._asking) < _MOST_ASKING
        if is_new:
            self._asking.append(task)
        return is_new

    def size(self) -> int:
        """Return how many jobs the pool may run at once. With --autoscale it grows to that number only if needed."""
        controller = self._consumer.controller
        scaled: Any = getattr(controller, "autoscaler", None) or controller
        return int(getattr(scaled, "max_concurrency", None) or pools.size(self._consumer.pool))

    def unclaimed(self) -> int:
        other_runs: OtherRuns | None = getattr(self._consumer.pool, "affinity_other_runs", None)
        return unclaimed.count() + (0 if other_runs is None else other_runs.count())

    def still_has(self, request: object) -> bool:
        pool = self._consumer.pool
        if isinstance(request, BufferedRequest):  # Celery drops none of these; without a run, the worker's stop does
            return request.is_in_the_pool() and not pool.affinity_other_runs.is_closed
        return pools.still_has(pool, request)
