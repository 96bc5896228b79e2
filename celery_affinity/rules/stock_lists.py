"""Names of the Redis lists to which stock Celery's producers publish: one list per queue and priority step."""

from collections.abc import Callable
from dataclasses import dataclass

#: Maximum number of queues whose lists one report reads.
MOST_QUEUES = 500


@dataclass(frozen=True)
class StockLists:
    """The lists to which stock Celery's producers of an app can publish, according to the app's configuration."""

    #: Names of the queues to which the app's calls can be routed.
    queues: tuple[str, ...]
    #: Names of the exchanges to which kombu binds these queues. Other queues can be bound to them too.
    exchanges: tuple[str, ...]
    #: Transport option ``priority_steps``.
    steps: tuple[int, ...]
    #: Transport option ``sep``.
    sep: str
    #: Returns True if this transport schedules the queue, so that its workers ingest the queue's lists.
    schedules: Callable[[str], bool]
    #: Setting ``affinity_ingest``.
    ingests: bool = True

    def lists(self, prefix: str, queue: str) -> list[str]:
        """Return the names of the lists of *queue*, most urgent first. *prefix*: kombu's key prefix."""
        return [f"{prefix}{queue}{self.sep}{step}" if step else f"{prefix}{queue}" for step in self.steps]

    def binding(self, prefix: str, exchange: str) -> str:
        """Return the key of the set of queues that kombu has bound to *exchange*."""
        return f"{prefix}_kombu.binding.{exchange}"
