"""What the figures of types (how long jobs waited and ran, how they ended) cost the rate at which a worker drains."""

from dataclasses import dataclass, replace

from celery_affinity.observe.figures import figures_of
from celery_affinity.rules.keys import Keys
from celery_affinity.server.reader import Reader

from .bench import Bench, BenchmarkError
from .drain import drain
from .systems import AFFINITY, Variant

#: Rounds for each round of other parts: the difference that is looked for is 2 %, and one round moves by more.
MORE_ROUNDS = 3

_TYPE = "celery"  # Celery's default queue


@dataclass(frozen=True)
class Figured(Variant):
    """A worker whose scripts count figures, as they do everywhere, or whose app leaves that part of them out."""

    counts: bool = True

    @property
    def name(self) -> str:
        return f"{super().name}, {'with' if self.counts else 'without'} figures"

    @property
    def beside(self) -> str | None:
        return replace(self, counts=False).name if self.counts else None

    def command(self) -> list[str]:
        app = "celery_app" if self.counts else "uncounted_app"
        return [word.replace("celery_app", app) for word in super().command()]


def compared() -> list[Figured]:
    return [Figured(AFFINITY, pool, counts=counts) for pool in ("solo", "threads") for counts in (True, False)]


def figures(bench: Bench, worker: Figured, tasks: int) -> dict[str, float]:
    """Return what `drain` does. All starts and ends must have been counted, or none."""
    found = drain(bench, worker, tasks)
    counted = figures_of(Reader(bench.client, Keys()), [_TYPE])
    numbers = sum(each.started for each in counted), sum(each.runs.number for each in counted)
    if numbers != ((tasks, tasks) if worker.counts else (0, 0)):
        raise BenchmarkError(f"{worker.name}: of {tasks} tasks {numbers} starts and ends were counted")
    return found
