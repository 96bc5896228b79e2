"""Counts lost tasks when workers are killed repeatedly in the middle of a drain."""

import json
import random
import re
from contextlib import suppress

from .bench import Bench, BenchmarkError
from .systems import STOCK, Variant, waiting

#: A worker is killed after a random number of tasks in this range.
_RUN = (20, 150)
#: Number of published tasks per kill.
_TASKS = 160

#: Seconds to wait for a task: the fleet notices a killed worker after at most 30 s.
_QUIET_S = 40.0


def loss(bench: Bench, variant: Variant, kills: int) -> dict[str, float]:
    """Return the number of lost tasks, of repeated tasks, and of tasks that stock still stores as unacknowledged."""
    tasks = kills * _TASKS
    bench.restock(variant, tasks)
    bench.ledger.clear()
    rng = random.Random(1)
    for _ in range(kills):
        with bench.killed_worker(variant) as worker:
            bench.wait_for_tasks(worker, len(bench.ledger) + rng.randint(*_RUN))
    with bench.worker(variant) as worker, suppress(AssertionError):  # no waiting task remains
        while waiting(variant.system, bench.client):
            bench.wait_for_tasks(worker, len(bench.ledger) + 1, quiet_s=_QUIET_S)
    numbers = [record.number for record in bench.ledger.records()]
    ran = set(numbers)
    unacked = _unacked(bench) if variant.system == STOCK else set()
    if variant.system != STOCK and waiting(variant.system, bench.client):
        raise BenchmarkError(f"{variant.name}: {waiting(variant.system, bench.client)} jobs were not delivered")
    lost = set(range(tasks)) - ran - unacked
    return {"lost": len(lost), "run again": len(numbers) - len(ran), "held back": len(unacked - ran)}


def _unacked(bench: Bench) -> set[int]:
    """Return the tasks that stock stores as unacknowledged, and delivers again after an hour."""
    numbers = set()
    for entry in bench.client.hvals("unacked"):
        message, _, _ = json.loads(entry)
        numbers.add(int(re.findall(r"\d+", message["headers"]["argsrepr"])[0]))
    return numbers
