"""The systems under comparison: equally configured workers of stock Celery, this transport and dramatiq."""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import AUTO

from .ledger import VARIABLE

ROOT = Path(__file__).parents[1]

STOCK, AFFINITY, DRAMATIQ = "stock", "affinity", "dramatiq"

#: Celery with a no-op broker inside the worker process: the upper limit for every transport.
FLOOR = "floor"

#: This transport from another directory, to measure the effect of a change.
BEFORE = "before"

SLOTS = {"solo": 1, "threads": 8, "prefork": 2}

#: Number of threads per worker in the benchmark of waiting tasks.
WAITING_THREADS = 10
#: Extra network latency to the server in ms.
AWAY_MS = 1.0

#: Number of prefetched jobs per worker in the look-ahead benchmarks. Stock Celery prefetches the same number by default
#: for two pool processes.
LOOKAHEAD = 8

#: Run times in ms of short tasks and of waiting tasks.
LENGTHS_MS = SHORT_MS, WAITING_MS = 10, 100

#: Number of exclusive keys in the benchmark of keys. Each job has one key.
KEYS = 1_000

#: Number of tenants in the benchmark of tenants. Each job belongs to one tenant.
TENANTS = 100

#: Number of consecutive tasks per turn. Turns with and without the measured feature alternate.
TASKS_A_TURN = 100

#: Tasks with merged calls -> method of publishing: with a separate key per call, or with one key for all calls.
MERGED = {"own_key": "merged own key", "one_key": "merged one key"}

#: Options that disable mingle, gossip, heartbeats and info logs, so that the benchmark measures only the tasks.
_WORKER = ["--loglevel", "WARNING", "--without-mingle", "--without-gossip", "--without-heartbeat"]


_WORDS_OF_LOOKAHEAD = {0: "strict", AUTO: "default"}


@dataclass(frozen=True)
class Variant:
    """The configuration of a measured worker."""

    system: str
    pool: str
    #: True for late acks.
    late: bool = True
    #: Messages per slot that the worker prefetches, or None for the system's default.
    prefetch: int | None = None
    #: Number of jobs prefetched beyond the slots, or `AUTO`, the default of the setting.
    lookahead: int | str = 0
    #: Number of slots, or None for the pool's number in `SLOTS`.
    threads: int | None = None
    #: Extra network latency to the server in ms.
    away_ms: float = 0.0
    #: Module in `apps` that contains the worker's app.
    app: str = "celery_app"
    #: Directory from which the worker imports the package, or None for this checkout.
    source: Path | None = None

    @property
    def name(self) -> str:
        words = [self.pool, self.system]
        if self.system != DRAMATIQ:
            words.append("late acks" if self.late else "early acks")
        if self.prefetch:
            words.append(f"prefetch {self.prefetch}")
        if self.system in (AFFINITY, BEFORE):
            words.append(_WORDS_OF_LOOKAHEAD.get(self.lookahead, f"{self.lookahead} ahead"))
        if self.threads:
            words.append(f"{self.threads} threads")
        if self.away_ms:
            words.append(f"{self.away_ms:g} ms away")
        return ", ".join(words)

    @property
    def baseline(self) -> str | None:
        """Name of the stock worker with the same guarantees. Stock's default prefetch corresponds to look-ahead."""
        if self.system == STOCK and not self.prefetch:
            return None
        prefetch = None if self.lookahead or self.system == STOCK else 1
        return replace(self, system=STOCK, prefetch=prefetch, lookahead=0, source=None).name

    @property
    def stored_as(self) -> str:
        """The system that publishes the messages for this worker."""
        return STOCK if self.system == FLOOR else self.system

    @property
    def slots(self) -> int:
        return self.threads or SLOTS[self.pool]

    @property
    def is_for_a_goal(self) -> bool:
        """True if a goal needs this variant: late acks except for `FLOOR`, or early acks with default settings."""
        if self.system in (STOCK, AFFINITY) and not self.prefetch and self.lookahead in (0, AUTO) and not self.late:
            return self.system == STOCK or self.lookahead == AUTO
        return self.late and self.system != FLOOR

    def command(self) -> list[str]:
        if self.system == DRAMATIQ:
            options = ["--processes", "1", "--threads", str(self.slots), "--skip-logging"]
            return [sys.executable, "-m", "dramatiq", "benchmarks.apps.dramatiq_app", *options]
        pool = ["--pool", self.pool, "--concurrency", str(self.slots)]
        return [sys.executable, "-m", "celery", "-A", f"benchmarks.apps.{self.app}", "worker", *_WORKER, *pool]

    def environment(self, url: str, ledger: Path) -> dict[str, str]:
        """Return the environment variables for the apps, with *source* first on the import path."""
        conf = {"broker_url": url, "task_acks_late": self.late}
        if self.prefetch:
            conf["worker_prefetch_multiplier"] = self.prefetch
        if self.lookahead != AUTO:
            conf["affinity_lookahead"] = self.lookahead
        if self.system in (AFFINITY, BEFORE):
            conf["broker_transport"] = "celery_affinity:Transport"
        if self.system == FLOOR:
            conf["broker_transport"] = "benchmarks.apps.nothing:Transport"
        paths = [str(path) for path in (self.source, ROOT) if path]
        return {
            "BENCHMARK_CONF": json.dumps(conf),
            VARIABLE: str(ledger),
            "PYTHONPATH": os.pathsep.join(paths),
        }


def variants(before: Path | None = None) -> list[Variant]:
    """Return all drain variants, grouped by pool, and our variants again from the directory *before*."""
    variants = []
    for pool in SLOTS:
        for late in (False, True):
            variants += [Variant(STOCK, pool, late), Variant(STOCK, pool, late, prefetch=1)]
            variants += [Variant(AFFINITY, pool, late, lookahead=ahead) for ahead in (0, LOOKAHEAD, AUTO)]
        if pool == "threads":
            variants.append(Variant(DRAMATIQ, pool))
        if pool == "solo":
            variants.append(Variant(FLOOR, pool))
    return _with_before(variants, before)


def waiting_variants(before: Path | None = None) -> list[Variant]:
    """Return variants with default settings and many threads, for waiting tasks."""
    variants = [Variant(STOCK, "threads", late, threads=WAITING_THREADS) for late in (False, True)]
    variants += [replace(variant, system=AFFINITY, lookahead=AUTO) for variant in variants]
    return _with_before(variants, before)


def away_variants(before: Path | None = None) -> list[Variant]:
    """Return variants with extra network latency to the server."""
    variants = []
    for pool in ("solo", "prefork"):
        variants += [Variant(STOCK, pool), Variant(AFFINITY, pool), Variant(AFFINITY, pool, lookahead=AUTO)]
    return _with_before([replace(variant, away_ms=AWAY_MS) for variant in variants], before)


def _with_before(variants: list[Variant], before: Path | None) -> list[Variant]:
    ours = [variant for variant in variants if variant.system == AFFINITY] if before else []
    return [*variants, *(replace(variant, system=BEFORE, source=before) for variant in ours)]


def messages(client: redis.Redis) -> int:
    """Return the number of messages that our transport stores in the database of *client*, one per merged call."""
    return sum(1 for _ in client.scan_iter(match=Keys().key("message", "*"), count=1000))


def waiting(system: str, client: redis.Redis) -> int:
    """Return the number of messages in the database of *client* that are waiting or that a worker holds."""
    if system == FLOOR:
        return 0
    if system == STOCK:
        return int(client.llen("celery")) + int(client.hlen("unacked"))
    if system == DRAMATIQ:
        return int(client.hlen("dramatiq:default.msgs"))
    status = Report(Reader(client, Keys())).status()
    return sum(row.pending + (row.claimed or 0) for row in status.types)
