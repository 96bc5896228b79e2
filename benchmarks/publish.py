"""Measures the rate at which clients publish, and the cost per message."""

from dataclasses import dataclass

import celery_affinity

from .bench import Bench, BenchmarkError
from .meter import per_task
from .systems import AFFINITY, DRAMATIQ, FLOOR, MERGED, STOCK, Variant, messages, waiting

_WARM_UP = 100


@dataclass(frozen=True)
class Way:
    """A system and a way to publish."""

    variant: Variant
    way: str

    @property
    def name(self) -> str:
        return f"{self.variant.system}, {self.way}"

    @property
    def baseline(self) -> str | None:
        if self.merges:
            return f"{AFFINITY}, delay"
        return None if self.name == f"{STOCK}, delay" else f"{STOCK}, delay"

    @property
    def merges(self) -> bool:
        return self.way in MERGED.values()


def ways(before: Variant | None = None) -> list[Way]:
    """Return the compared ways, including `publish_many` if the package has it."""
    ways = [
        Way(Variant(STOCK, "solo"), "delay"),
        Way(Variant(AFFINITY, "solo"), "delay"),
        Way(Variant(STOCK, "solo"), "batch"),
        Way(Variant(AFFINITY, "solo"), "batch"),
        Way(Variant(DRAMATIQ, "threads"), "delay"),
        Way(Variant(FLOOR, "solo"), "delay"),
    ]
    if hasattr(celery_affinity, "publish_many"):
        ways.append(Way(Variant(AFFINITY, "solo"), "publish_many"))
    ways += [Way(Variant(AFFINITY, "solo"), way) for way in MERGED.values()]
    if before:
        ways += [Way(before, "delay"), Way(before, "batch")]
    return ways


def publish(bench: Bench, way: Way, tasks: int) -> dict[str, float]:
    """Return the rate in messages per second, and the costs per message. Check that all messages arrived."""
    publisher = bench.publisher(way.variant)
    bench.client.flushdb()
    publisher.publish(_WARM_UP, way.way)
    meter = bench.meter()
    before = meter.read()
    took = publisher.publish(tasks, way.way)
    after = meter.read()
    stored = messages(bench.client) if way.merges else waiting(way.variant.system, bench.client)
    if stored != _WARM_UP + tasks and way.variant.system != FLOOR:
        raise BenchmarkError(f"{way.name}: {stored} messages wait, not {_WARM_UP + tasks}")
    if way.way == MERGED["one_key"] and waiting(way.variant.system, bench.client) == stored:
        raise BenchmarkError(f"{way.name}: no calls merged")
    costs = per_task(before, after, tasks)
    del costs["worker_us"]
    return {"rate": tasks / took["seconds"], "client_us": 1e6 * took["cpu_s"] / tasks, **costs}
