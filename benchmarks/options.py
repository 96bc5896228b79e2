"""The options of a run: subjects, numbers of tasks, and durations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .results import Subject

S = TypeVar("S", bound=Subject)


@dataclass(frozen=True)
class Options:
    """The options of a run. Durations are in seconds."""

    parts: tuple[str, ...]
    rounds: int = 5
    every_variant: bool = True
    publish_tasks: int = 2000
    drain_tasks: int = 6000
    latency_jobs: int = 300
    idle_s: float = 20.0
    idle_rounds: int = 5
    load_s: float = 30.0
    slot_tasks: int = 1000
    arrow_calls: int = 200
    #: Maximum size in the parts `arrows` and `observers`.
    largest: int = 1_000_000
    #: Rounds of all kinds of operations on the largest fleet of `arrows`.
    live_rounds: int = 100
    #: Number of reports per observer.
    looks: int = 20
    page_s: float = 30.0
    #: Number of pending jobs in the part `page`.
    page_jobs: int = 100_000
    memory_jobs: int = 6000
    shared_results: int = 1000
    kills: int = 50
    recorded_tasks: int = 150_000
    #: If not empty: only subjects whose names have all words of one of these sets.
    only: tuple[frozenset[str], ...] = ()
    #: Another checkout, which is measured as well.
    before: Path | None = None
    #: Executable of the server.
    server: str | None = None

    def chosen(self, subjects: Sequence[S]) -> list[S]:
        """Return the subjects that `only` selects."""
        if not self.only:
            return list(subjects)
        return [subject for subject in subjects if any(words <= _words(subject.name) for words in self.only)]


def _words(name: str) -> set[str]:
    return set(name.replace(",", " ").split())


_QUICK_PARTS = (
    "publish",
    "drain",
    "latency",
    "idle",
    "load",
    "slots",
    "waits",
    "away",
    "arrows",
    "observers",
    "page",
    "memory",
    "sharing",
    "metrics",
    "keys",
    "tenants",
    "recording",
    "cluster",
)

FULL = Options(parts=(*_QUICK_PARTS, "loss"))

QUICK = Options(
    parts=_QUICK_PARTS,
    rounds=3,
    every_variant=False,
    publish_tasks=1000,
    drain_tasks=1500,
    latency_jobs=60,
    idle_s=24.0,
    idle_rounds=1,
    load_s=8.0,
    slot_tasks=200,
    arrow_calls=100,
    largest=10_000,
    live_rounds=21,
    page_s=8.0,
    page_jobs=10_000,
    memory_jobs=2000,
)
