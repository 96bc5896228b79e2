"""The systems that are compared: workers of stock Celery, of this transport and of dramatiq, configured alike."""

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

#: Celery with a broker that does nothing, in the worker's own process: what no transport can be better than.
FLOOR = "floor"

#: This transport as it is in another directory, to see what a change gave.
BEFORE = "before"

SLOTS = {"solo": 1, "threads": 8, "prefork": 2}

#: Threads of a worker whose tasks wait for something, and the time, ms, by which a server is farther away.
WAITING_THREADS = 10
AWAY_MS = 1.0

#: Jobs that a worker may hold beyond its slots, where look-ahead is measured: as many as stock prefetches for two pool
#: processes, by default.
LOOKAHEAD = 8

#: Lengths, ms, of the tasks that last: short ones, and those that wait for something.
LENGTHS_MS = SHORT_MS, WAITING_MS = 10, 100

#: Exclusive keys, one of which a job has, where the cost of keys is measured.
KEYS = 1_000

#: Tenants, to one of which a job belongs, where the cost of tenants is measured.
TENANTS = 100

#: Tasks, one after the other, that meet what is measured, before as many that do not.
TASKS_A_TURN = 100

#: Tasks of which calls merge, and the ways to publish them: each call with a key of its own, or all with one.
MERGED = {"own_key": "merged own key", "one_key": "merged one key"}

#: Nothing but the work: no worker talks to others, and what they log costs nothing.
_WORKER = ["--loglevel", "WARNING", "--without-mingle", "--without-gossip", "--without-heartbeat"]


_WORDS_OF_LOOKAHEAD = {0: "strict", AUTO: "default"}


@dataclass(frozen=True)
class Variant:
    """A worker as it is measured. *prefetch*: messages for each slot, where the system has them wait in the worker.

    *lookahead*: jobs beyond the slots, or `AUTO`, which is the default. *threads*: slots, if others than usual.
    *away_ms*: how much farther away the server is. *app*: the worker's, a module of `apps`. *source*: where the package
    is imported from, if not from here.
    """

    system: str
    pool: str
    late: bool = True
    prefetch: int | None = None
    lookahead: int | str = 0
    threads: int | None = None
    away_ms: float = 0.0
    app: str = "celery_app"
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
    def beside(self) -> str | None:
        """Return the name of stock's worker with the same guarantees: look-ahead is what prefetch is there."""
        if self.system == STOCK and not self.prefetch:
            return None
        prefetch = None if self.lookahead or self.system == STOCK else 1
        return replace(self, system=STOCK, prefetch=prefetch, lookahead=0, source=None).name

    @property
    def stored_as(self) -> str:
        """Return the system that publishes what this one runs."""
        return STOCK if self.system == FLOOR else self.system

    @property
    def slots(self) -> int:
        return self.threads or SLOTS[self.pool]

    @property
    def is_for_a_goal(self) -> bool:
        """Whether a goal compares it: with late acks, and stock with its default prefetch only beside look-ahead."""
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
        """Return what the apps read; the package comes from *source*."""
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
    """Return every worker that is compared, those of one pool together; also from the directory *before*."""
    found = []
    for pool in SLOTS:
        for late in (False, True):
            found += [Variant(STOCK, pool, late), Variant(STOCK, pool, late, prefetch=1)]
            found += [Variant(AFFINITY, pool, late, lookahead=ahead) for ahead in (0, LOOKAHEAD, AUTO)]
        if pool == "threads":
            found.append(Variant(DRAMATIQ, pool))
        if pool == "solo":
            found.append(Variant(FLOOR, pool))
    return _with_before(found, before)


def waiting_variants(before: Path | None = None) -> list[Variant]:
    """Return workers in their default settings whose tasks wait, in many threads."""
    found = [Variant(STOCK, "threads", late, threads=WAITING_THREADS) for late in (False, True)]
    found += [replace(each, system=AFFINITY, lookahead=AUTO) for each in found]
    return _with_before(found, before)


def away_variants(before: Path | None = None) -> list[Variant]:
    """Return workers with a network between them and the server."""
    found = []
    for pool in ("solo", "prefork"):
        found += [Variant(STOCK, pool), Variant(AFFINITY, pool), Variant(AFFINITY, pool, lookahead=AUTO)]
    return _with_before([replace(each, away_ms=AWAY_MS) for each in found], before)


def _with_before(found: list[Variant], before: Path | None) -> list[Variant]:
    ours = [each for each in found if each.system == AFFINITY] if before else []
    return [*found, *(replace(each, system=BEFORE, source=before) for each in ours)]


def messages(client: redis.Redis) -> int:
    """Return how many messages of ours are kept in the database of *client*: of calls that merged, each has its own."""
    return sum(1 for _ in client.scan_iter(match=Keys().key("message", "*"), count=1000))


def waiting(system: str, client: redis.Redis) -> int:
    """Return how many messages wait in the database of *client*, or are held by a worker."""
    if system == FLOOR:
        return 0
    if system == STOCK:
        return int(client.llen("celery")) + int(client.hlen("unacked"))
    if system == DRAMATIQ:
        return int(client.hlen("dramatiq:default.msgs"))
    status = Report(Reader(client, Keys())).status()
    return sum(each.pending + (each.claimed or 0) for each in status.types)
