"""Measures the rate at which a worker runs waiting no-op tasks, and the cost per task."""

from collections import Counter
from typing import NamedTuple

from tests.support.processes import wait_until

from .bench import Bench, BenchmarkError
from .ledger import Record
from .meter import per_task
from .systems import Variant, waiting


class Drained(NamedTuple):
    """The results of a drain."""

    #: A record of the start of each task, in order of time.
    records: list[Record]
    #: Costs per task, as in `meter.per_task`.
    costs: dict[str, float]


def drain(bench: Bench, variant: Variant, tasks: int) -> dict[str, float]:
    """Return the rate in tasks per second, from the first start to the last start, and the costs per task."""
    records, costs = run_all(bench, variant, tasks)
    seconds = (records[-1].ns - records[0].ns) / 1e9
    return {"rate": (tasks - 1) / seconds, **costs}


def run_all(bench: Bench, variant: Variant, tasks: int, way: str = "delay") -> Drained:
    """Run a worker until it has run *tasks* tasks, which were published in *way*. Check that each ran once."""
    bench.restock(variant, tasks, way)
    bench.ledger.clear()
    with bench.worker(variant) as worker:
        meter = bench.meter(worker.pid)
        bench.wait_for_tasks(worker, 1)
        started, before = len(bench.ledger), meter.read()
        bench.wait_for_tasks(worker, tasks)
        after = meter.read()
        wait_until(lambda: not waiting(variant.system, bench.client), 10, f"{variant.name} settles every message")
    records = bench.ledger.records()
    check_each_ran_once(records, tasks, variant.name)
    return Drained(records, per_task(before, after, tasks - started))


def check_each_ran_once(records: list[Record], tasks: int, name: str) -> None:
    runs = Counter(record.number for record in records)
    lost = sum(not runs[number] for number in range(tasks))
    if lost or runs.total() != tasks:
        raise BenchmarkError(f"{name}: of {tasks} tasks {lost} were lost, and there were {runs.total()} runs")
