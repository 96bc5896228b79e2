"""Measures how fast all callers of a merged run get its result, with Redis as the result backend."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from .bench import Bench, BenchmarkError
from .systems import AFFINITY, Variant

#: Database of the results: the last one of the server, which no backlog uses.
RESULTS = 15

_POLL_S = 0.002


@dataclass(frozen=True)
class Sharer(Variant):
    """A worker that stores results. *results*: number of merged calls."""

    system: str = AFFINITY
    pool: str = "solo"
    app: str = "merging_app"
    results: int = 1000

    @property
    def name(self) -> str:
        return f"{self.system}, {self.results:,} results"

    @property
    def baseline(self) -> str | None:
        return None

    def environment(self, url: str, ledger: Path) -> dict[str, str]:
        env = super().environment(url, ledger)
        conf = {**json.loads(env["BENCHMARK_CONF"]), "result_backend": f"{url.rpartition('/')[0]}/{RESULTS}"}
        return {**env, "BENCHMARK_CONF": json.dumps(conf)}


def sharing(bench: Bench, sharer: Sharer) -> dict[str, float]:
    """Return the rate in results per second, from the task's start to the last result. Check that all calls merged."""
    bench.client.flushdb()
    bench.ledger.clear()
    with bench.client_of(RESULTS) as results:
        results.flushdb()
        bench.publisher(Variant(AFFINITY, sharer.pool)).publish(sharer.results, "shared")
        with bench.worker(sharer) as worker:
            bench.wait_for_tasks(worker, 1)
            deadline_s = time.monotonic() + 60
            while (stored := results.dbsize()) < sharer.results and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
            ended_ns = time.monotonic_ns()
    records = bench.ledger.records()
    if stored != sharer.results or len(records) != 1:
        raise BenchmarkError(f"{sharer.name}: {stored} results of {len(records)} runs")
    return {"rate": sharer.results / (ended_ns - records[0].ns) * 1e9}
