"""The systems that are compared: workers of stock Celery, of this transport and of dramatiq, configured alike."""

import json
import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import redis

from celery_affinity.observe.status import Report
from celery_affinity.rules.keys import Keys
from celery_affinity.rules.settings import Settings
from celery_affinity.server.reader import Reader

from .ledger import VARIABLE

ROOT = Path(__file__).parents[1]

STOCK, AFFINITY, DRAMATIQ = "stock", "affinity", "dramatiq"

#: Celery with a broker that does nothing, in the worker's own process: what no transport can be better than.
FLOOR = "floor"

#: This transport as it is in another directory, to see what a change gave.
BEFORE = "before"

SLOTS = {"solo": 1, "threads": 8, "prefork": 2}

#: Jobs that a worker may hold beyond its slots, where look-ahead is measured: as many as stock prefetches for two pool
#: processes, by default.
LOOKAHEAD = 8

#: Exclusive keys, one of which a job has, where the cost of keys is measured.
KEYS = 1_000

#: Tasks, one after the other, that meet what is measured, before as many that do not.
TASKS_A_TURN = 100

#: Tasks of which calls merge, and the ways to publish them: each call with a key of its own, or all with one.
MERGED = {"own_key": "merged own key", "one_key": "merged one key"}

#: Nothing but the work: no worker talks to others, and what they log costs nothing.
_WORKER = ["--loglevel", "WARNING", "--without-mingle", "--without-gossip", "--without-heartbeat"]


@dataclass(frozen=True)
class Variant:
    """A worker as it is measured. *prefetch*: messages for each slot, where the system has them wait in the worker.

    *app*: the worker's, a module of `apps`. *source*: where the package is imported from, if not from here.
    """

    system: str
    pool: str
    late: bool = True
    prefetch: int | None = None
    lookahead: int = 0
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
            words.append(f"{self.lookahead} ahead" if self.lookahead else "strict")
        return ", ".join(words)

    @property
    def beside(self) -> str | None:
        """Return the name of stock's worker with the same guarantees: look-ahead is what prefetch is there."""
        if self.system == STOCK and not self.prefetch:
            return None
        return Variant(STOCK, self.pool, self.late, prefetch=None if self.lookahead or self.system == STOCK else 1).name

    @property
    def stored_as(self) -> str:
        """Return the system that publishes what this one runs."""
        return STOCK if self.system == FLOOR else self.system

    @property
    def slots(self) -> int:
        return SLOTS[self.pool]

    @property
    def is_for_a_goal(self) -> bool:
        """Whether a goal compares it: with late acks, and stock with its default prefetch only beside look-ahead."""
        return self.late and self.system != FLOOR and (self.system != STOCK or self.prefetch == 1 or has_lookahead())

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
        if self.lookahead:
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


def has_lookahead() -> bool:
    return "lookahead" in {each.name for each in fields(Settings)}


def variants(before: Path | None = None) -> list[Variant]:
    """Return every worker that is compared, those of one pool together; also from the directory *before*."""
    found = []
    for pool in SLOTS:
        for late in (False, True):
            found += [Variant(STOCK, pool, late), Variant(STOCK, pool, late, prefetch=1), Variant(AFFINITY, pool, late)]
            if has_lookahead():
                found.append(Variant(AFFINITY, pool, late, lookahead=LOOKAHEAD))
        if pool == "threads":
            found.append(Variant(DRAMATIQ, pool))
        if pool == "solo":
            found.append(Variant(FLOOR, pool))
    if before:
        found += [replace(each, system=BEFORE, source=before) for each in found if each.system == AFFINITY]
    return found


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
