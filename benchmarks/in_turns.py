"""Measure the effect of a feature on the drain rate by alternating turns with and without it within one drain.

The speed of a shared machine varies by about 10 % from one minute to the next. Consecutive turns are about 0.1 s
apart, so a disturbance mostly affects both turns equally.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from celery_affinity.reports.type_metrics import metrics_of
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from .bench import Bench, BenchmarkError, print_progress
from .drain import run_all
from .ledger import Record
from .results import Named, Part
from .systems import AFFINITY, KEYS, SLOTS, TASKS_A_TURN, TENANTS, Variant

_TYPE = "celery"  # Celery's default queue


@dataclass(frozen=True)
class Compared:
    """A worker that runs half of its tasks with the feature *what*."""

    pool: str
    #: Name of the measured feature.
    what: str
    #: Module of the worker's app.
    app: str = "celery_app"
    #: Method of publishing the tasks.
    way: str = "delay"

    @property
    def name(self) -> str:
        return f"{self.pool}, {AFFINITY}, late acks, strict, with {self.what}"

    @property
    def baseline(self) -> str:
        """Name of the half without the feature."""
        return f"{self.pool}, {AFFINITY}, late acks, strict, without {self.what}"


METRICS = [Compared(pool, "metrics", app="half_counted_app") for pool in ("solo", "threads")]
KEYED = [Compared(pool, f"{KEYS:,} keys", way="keyed in turns") for pool in SLOTS]
OF_TENANTS = [Compared(pool, f"{TENANTS} tenants", way="of tenants in turns") for pool in SLOTS]


def measured(bench: Bench, compared: Sequence[Compared], rounds: int, tasks: int) -> Part:
    """Measure the rates with and without the feature, each for *tasks* tasks per round."""
    part = Part()
    for round_ in range(1, rounds + 1):
        for subject in compared:
            records, _ = run_all(bench, Variant(AFFINITY, subject.pool, app=subject.app), 2 * tasks, subject.way)
            if subject in METRICS:
                check_half_is_counted(bench, 2 * tasks)
            without, with_ = rates(records, TASKS_A_TURN)
            part.add(Named(subject.name, subject.baseline), {"rate": with_})
            part.add(Named(subject.baseline), {"rate": without})
            print_progress(f"{round_}/{rounds}  {subject.name}: {with_:,.1f}, without {without:,.1f}")
    return part


def rates(records: Sequence[Record], tasks_per_turn: int) -> tuple[float, float]:
    """Return the rates of the odd and the even turns, in tasks per second.

    Args:
        records: task records in order of time.
        tasks_per_turn: number of tasks per turn.
    """
    ns = [record.ns for record in records[::tasks_per_turn]]
    turns_ns = [later - earlier for earlier, later in pairwise(ns)]
    if len(turns_ns) < 2:
        raise BenchmarkError(f"{len(records)} tasks are fewer than two turns of {tasks_per_turn}")
    first, second = (1e9 * tasks_per_turn / statistics.median(turns_ns[nth::2]) for nth in (0, 1))
    return first, second


def check_half_is_counted(bench: Bench, tasks: int) -> None:
    """Raise BenchmarkError unless the metrics contain half of the starts and ends, to within one turn."""
    metrics = metrics_of(Reader(bench.client, Keys()), [_TYPE])
    for number in (sum(row.started for row in metrics), sum(row.runs.number for row in metrics)):
        if not abs(number - tasks // 2) <= TASKS_A_TURN:
            raise BenchmarkError(f"the metrics have {number} of {tasks} tasks, not every second {TASKS_A_TURN}")


def goal_of(part: str, compared: Compared) -> Callable[[dict[str, Part]], float | None]:
    """Return a function that computes the ratio of the rates with and without the feature."""
    return lambda results: results[part].ratio(compared.name, compared.baseline, "rate") if part in results else None
