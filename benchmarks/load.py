"""Measures the waits of on-demand jobs during a batch, and the use of slots by short tasks."""

from .bench import Bench, BenchmarkError
from .drain import check_each_ran_once
from .latency import quantiles
from .ledger import END, START, Record
from .systems import SHORT_MS, Variant

#: Fraction of the slots that batch jobs of BATCH_S and on-demand jobs of ON_DEMAND_S keep busy together.
LOAD = 0.95
BATCH_S = 0.100
ON_DEMAND_S, ON_DEMAND_RATE = 0.005, 8.0

_FIRST_ON_DEMAND = 1_000_000
_WARM_UP = 10


def on_demand(bench: Bench, variant: Variant, seconds: float, seed: int) -> dict[str, float]:
    """Return quantiles of the on-demand jobs' waits in ms; `beyond`: p99 minus the length of a batch job."""
    bench.client.flushdb()
    bench.ledger.clear()
    publisher = bench.publisher(variant)
    with bench.worker(variant) as worker:
        publisher.publish(_WARM_UP)
        bench.wait_for_tasks(worker, _WARM_UP)
        bench.ledger.clear()
        published_ns = publisher.publish_by_chance(
            seconds=seconds,
            seed=seed,
            first_on_demand=_FIRST_ON_DEMAND,
            queued={"rate": (LOAD * variant.slots - ON_DEMAND_RATE * ON_DEMAND_S) / BATCH_S, "lasts_s": BATCH_S},
            on_demand={"rate": ON_DEMAND_RATE, "lasts_s": ON_DEMAND_S},
        )
        bench.wait_for_tasks(worker, 2 * len(published_ns))
    records = bench.ledger.records()
    started_ns = {record.number: record.ns for record in records if record.kind == START}
    if started_ns.keys() != published_ns.keys() or len(records) != 2 * len(published_ns):
        raise BenchmarkError(f"{variant.name}: {len(records)} starts and ends of {len(published_ns)} tasks")
    waits_ns = [started_ns[number] - ns for number, ns in published_ns.items() if number >= _FIRST_ON_DEMAND]
    waits = quantiles(waits_ns)
    last_ns = max(published_ns.values())
    used = slot_use([record for record in records if record.ns <= last_ns], variant.slots)
    return {**waits, "beyond": waits["p99"] - 1000 * BATCH_S, "used": used}


def slots(bench: Bench, variant: Variant, tasks: int, length_ms: int = SHORT_MS) -> dict[str, float]:
    """Return the share of the slots' time in which tasks of *length_ms* run, and the gap between two tasks in ms."""
    bench.restock(variant, tasks, f"lasting {length_ms} ms")
    bench.ledger.clear()
    with bench.worker(variant) as worker:
        bench.wait_for_tasks(worker, 2 * tasks)
    records = bench.ledger.records()
    check_each_ran_once([record for record in records if record.kind == START], tasks, variant.name)
    used = slot_use(records, variant.slots)
    return {"used": used, "gap_ms": length_ms * (1 / used - 1)}


def slot_use(records: list[Record], slots: int) -> float:
    """Return the share of the slots' time, from the first record to the last, in which tasks ran."""
    busy_ns = sum(record.ns if record.kind == END else -record.ns for record in records)
    running = sum(1 if record.kind == START else -1 for record in records)
    first_ns, last_ns = records[0].ns, records[-1].ns
    return (busy_ns + running * last_ns) / (slots * (last_ns - first_ns))
