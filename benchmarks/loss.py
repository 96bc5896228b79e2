"""The fate of tasks when a worker is killed again and again in the middle of a drain."""

import json
import random
import re
from contextlib import suppress

from .bench import Bench, BenchmarkError
from .systems import STOCK, Variant, waiting

#: Tasks that a worker may run before it is killed, and those that are published for each.
_RUN = (20, 150)
_TASKS = 160

#: A worker that vanished is noticed after 30 s at the latest.
_QUIET_S = 40.0


def loss(bench: Bench, variant: Variant, kills: int) -> dict[str, float]:
    """Return how many tasks never ran and are nowhere, how many ran again, and how many stock still holds back."""
    tasks = kills * _TASKS
    bench.restock(variant, tasks)
    bench.ledger.clear()
    chance = random.Random(1)
    for _ in range(kills):
        with bench.killed_worker(variant) as worker:
            bench.wait_for_tasks(worker, len(bench.ledger) + chance.randint(*_RUN))
    with bench.worker(variant) as worker, suppress(AssertionError):  # there is nothing left to wait for
        while waiting(variant.system, bench.client):
            bench.wait_for_tasks(worker, len(bench.ledger) + 1, quiet_s=_QUIET_S)
    numbers = [record.number for record in bench.ledger.records()]
    ran = set(numbers)
    kept = _kept(bench) if variant.system == STOCK else set()
    if variant.system != STOCK and waiting(variant.system, bench.client):
        raise BenchmarkError(f"{variant.name}: {waiting(variant.system, bench.client)} jobs never came to a worker")
    lost = set(range(tasks)) - ran - kept
    return {"lost": len(lost), "run again": len(numbers) - len(ran), "held back": len(kept - ran)}


def _kept(bench: Bench) -> set[int]:
    """Return the tasks that stock has noted as unacknowledged: it delivers them again after an hour."""
    found = set()
    for noted in bench.client.hvals("unacked"):
        message, _, _ = json.loads(noted)
        found.add(int(re.findall(r"\d+", message["headers"]["argsrepr"])[0]))
    return found
