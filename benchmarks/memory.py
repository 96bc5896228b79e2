"""Measures the server's memory per pending job."""

from dataclasses import dataclass

from .bench import Bench, BenchmarkError
from .systems import STOCK, Variant, waiting

_WARM_UP = 100


@dataclass(frozen=True)
class Store:
    """A system on one of the servers."""

    variant: Variant
    bench: Bench
    server: str

    @property
    def name(self) -> str:
        return f"{self.server}, {self.variant.system}"

    @property
    def baseline(self) -> str | None:
        return None if self.variant.system == STOCK else f"{self.server}, {STOCK}"


def memory(store: Store, jobs: int) -> dict[str, float]:
    """Return the bytes per message. All messages are calls of the same task, published with `delay`."""
    bench, publisher = store.bench, store.bench.publisher(store.variant)
    bench.client.flushall()
    publisher.publish(_WARM_UP)
    before = bench.client.info("memory")["used_memory"]
    publisher.publish(jobs)
    after = bench.client.info("memory")["used_memory"]
    stored = waiting(store.variant.system, bench.client)
    if stored != _WARM_UP + jobs:
        raise BenchmarkError(f"{store.name}: {stored} messages wait, not {_WARM_UP + jobs}")
    return {"bytes": (after - before) / jobs}
