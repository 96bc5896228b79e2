"""Celery's pool, as the worker's membership in the fleet sees it (`Pool`)."""

from typing import TYPE_CHECKING, Any

from celery.concurrency.solo import TaskPool as SoloPool

from . import pools, unclaimed

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


class PoolSlots:
    """The pool of *consumer*, of any kind."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer

    @property
    def forks(self) -> bool:
        return pools.forks(self._consumer.pool)

    @property
    def blocks_the_loop(self) -> bool:
        return isinstance(self._consumer.pool, SoloPool)

    def size(self) -> int:
        """Return how many jobs the pool may run at once. With --autoscale it grows to that number only if needed."""
        controller = self._consumer.controller
        scaled: Any = getattr(controller, "autoscaler", None) or controller
        return int(getattr(scaled, "max_concurrency", None) or pools.size(self._consumer.pool))

    def unclaimed(self) -> int:
        return unclaimed.count()

    def still_has(self, request: object) -> bool:
        return pools.still_has(self._consumer.pool, request)
