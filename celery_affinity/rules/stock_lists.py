"""The lists in which stock Celery's producers put messages: one for each queue and step of priority."""

from collections.abc import Callable
from dataclasses import dataclass

#: Maximum number of queues whose lists one report looks at.
MOST_QUEUES = 500


@dataclass(frozen=True)
class StockLists:
    """Where stock Celery's producers of an app put messages, as far as the app's configuration tells."""

    #: Names of the queues that calls of the app can go to.
    queues: tuple[str, ...]
    #: Names of the exchanges to which kombu binds such queues, and perhaps further ones.
    exchanges: tuple[str, ...]
    #: Transport option ``priority_steps``.
    steps: tuple[int, ...]
    #: Transport option ``sep``.
    sep: str
    #: True for a queue whose messages live workers of this transport take over.
    schedules: Callable[[str], bool]
    #: Setting ``affinity_ingest``.
    ingests: bool = True

    def lists(self, prefix: str, queue: str) -> list[str]:
        """Return the names of the lists of *queue*, the most urgent first. *prefix*: that of kombu's keys."""
        return [f"{prefix}{queue}{self.sep}{step}" if step else f"{prefix}{queue}" for step in self.steps]

    def binding(self, prefix: str, exchange: str) -> str:
        """Return the key of the set of queues that kombu has bound to *exchange*."""
        return f"{prefix}_kombu.binding.{exchange}"
