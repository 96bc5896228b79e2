"""The slots of a worker's pool that belong to one cohort, as the membership there sees its pool."""

from typing import TYPE_CHECKING

from ..membership.shared_slots import SharedSlots
from .slots import PoolSlots

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


class CohortSlots(PoolSlots):
    """The part of *pool*, that of *consumer*, which *shared* has for *cohort*.

    *counts_unclaimed*: whether requests without a claim, as of broadcast tasks, take slots of this cohort: they do of
    one.
    """

    def __init__(
        self, consumer: "Consumer", pool: PoolSlots, shared: SharedSlots, cohort: str, *, counts_unclaimed: bool
    ) -> None:
        super().__init__(consumer)
        self._asking = pool._asking  # which tasks stop when they are asked to is known of the whole pool
        self._shared, self._cohort, self._counts_unclaimed = shared, cohort, counts_unclaimed

    def size(self) -> int:
        """Return how many slots the cohort has now."""
        return self._shared.of(self._cohort)

    def unclaimed(self) -> int:
        return super().unclaimed() if self._counts_unclaimed else 0
