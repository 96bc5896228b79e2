"""``python -m tests.whole.chaos --cluster`` injects faults of nodes, workers and connections on six nodes.

The ledger is stored outside the cluster. Every accepted job must end. It may run again only if its process was killed,
or if the primary of its claim died before the claim was replicated.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ...support.apps import APP
from ...support.cluster import Cluster
from ...support.fleet import PoolsOnACluster, closing
from ...support.ledger import Entry, ran_again
from ...support.load import Load
from ...support.processes import MARK, session_of, wait_until

POOLS = ("prefork", "threads", "gevent")

#: Max seconds after a fault until each pool runs jobs again.
MAX_STANDSTILL_S = 5.0

#: Number of started jobs that proves that a pool continues: more than a worker holds.
_BEGUN = 20

#: Max seconds to wait for these starts, and for the end of all jobs.
_PATIENCE_S = 60.0


@dataclass
class Report:
    """The result of a storm."""

    #: Kind of the fleet.
    of: str = "a cluster"
    jobs: int = 0
    again: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    standstill_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: Pauses longer than MAX_STANDSTILL_S.
    standstills: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        found = f"{self.jobs} jobs, {self.again} run again after a kill, {self.standstill_s:.1f} s stood still at most"
        lines = [f"chaos on {self.of}: {found}; {faults}", *self.standstills]
        return "\n".join([*lines, *(f"  VIOLATION: {each}" for each in self.violations)])


class Storm:
    """Random faults, sometimes two at the same time, under continuous load."""

    def __init__(self, cluster: Cluster, pools: PoolsOnACluster, chance: Random) -> None:
        self._cluster, self._pools, self._chance = cluster, pools, chance
        self._load = Load(pools)
        self._killed: set[int] = set()
        self.report = Report()

    def blow(self, seconds: float) -> Report:
        faults = [self.worker_killed, self.primary_killed, self.handed_over, self.slot_migrated, self.connections_cut]
        self._goes_on()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            names = []
            for fault in self._chance.sample(faults, self._chance.choice([1, 1, 2])):
                names.append(fault.__name__.replace("_", " "))
                fault()
            self.report.faults.update(names)
            pause_by_pool = self._goes_on()
            standstill_s = max(pause_by_pool.values())
            self.report.standstill_s = max(self.report.standstill_s, standstill_s)
            pauses = ", ".join(f"{pool} {pause_s:.1f} s" for pool, pause_s in pause_by_pool.items())
            line = f"{' and '.join(names)}: {pauses}"
            print(f"{time.strftime('%X')} {line}", flush=True)
            if standstill_s > MAX_STANDSTILL_S:
                self.report.standstills.append(f"stood still until {time.strftime('%X')} after {line}")
        self._end()
        return self.report

    # -- faults

    def worker_killed(self) -> None:
        pool = self._chance.choice(POOLS)
        worker = self._pools.workers[pool]
        self._killed.update(session_of(worker.pid))
        worker.kill()
        self._pools.start(pool)

    def primary_killed(self) -> None:
        """Kill the primary with the jobs or with the results, and restart it as a replica."""
        if self._chance.random() < 0.5:
            dead, _ = self._cluster.kill_owner()
        else:
            dead = self._cluster.owner_of(self._pools.app.backend.tag)
            self._cluster.kill_primary(dead)
        self._cluster.revive(dead)

    def handed_over(self) -> None:
        self._cluster.hand_over()

    def slot_migrated(self) -> None:
        self._cluster.migrate(self._cluster.other)

    def connections_cut(self) -> None:
        for node in self._cluster.alive:
            for kind in ("normal", "pubsub"):
                node.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    # -- checks

    def _goes_on(self) -> dict[str, float]:
        """Return the seconds until each pool has started more jobs than a worker holds, once all workers are up."""
        for worker in self._pools.workers.values():
            worker.wait_ready(_PATIENCE_S)
        since_s = time.time()

        def all_begin() -> dict[str, float] | None:
            begun: dict[str, list[float]] = {pool: [] for pool in POOLS}
            for each in self._pools.ledger.entries():
                if each.time_s > since_s:
                    begun[each.job.rpartition("-")[0]].append(each.time_s - since_s)
            if min(map(len, begun.values())) < _BEGUN:
                return None
            return {pool: sorted(times)[_BEGUN - 1] for pool, times in begun.items()}

        return wait_until(all_begin, _PATIENCE_S, f"each pool begins jobs\n{self._pools.logs()}")

    def _end(self) -> None:
        pools, sent = self._pools, self._load.end()
        try:
            self._drain(set(sent))
            pools.look()
            wait_until(pools.all_slots_are_free, 30, "all slots are free")
        except AssertionError as exc:
            self.report.violations.append(f"{exc}")
        self.report.violations += self._found_violations(sent, pools.ledger.entries())

    def _drain(self, sent: set[str]) -> None:
        """Wait until all jobs have ended. Fail if none ends for a while: a busy machine can have a long backlog."""

        def remaining() -> int:
            return len(sent - self._pools.ledger.ends().keys())

        while number := remaining():
            wait_until(lambda: remaining() < number, _PATIENCE_S, f"another of {number} jobs ends")

    def _found_violations(self, sent: list[str], entries: list[Entry]) -> Iterator[str]:
        begun, ended = ({each.job for each in entries if each.event == event} for event in ("start", "end"))
        self.report.jobs = len(sent)
        for job in sent:
            if job not in ended:
                yield f"{job} did not end, and {'was' if job in begun else 'was not'} begun"
        for run in ran_again(entries, self._cluster.deaths_s):
            self.report.again += 1
            if run.job in sent and run.pid not in self._killed:
                yield f"{run.job} ran again without a kill of {run.pid}"


def blow(seconds: float, seed: str, directory: Path) -> Report:
    os.environ.setdefault(MARK, f"chaos-{os.getpid()}")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(directory=directory / "nodes"))
        pools = PoolsOnACluster(
            APP, cluster, directory, POOLS, ACKS_LATE="1", HEARTBEAT_INTERVAL="1", WORKER_TIMEOUT="5"
        )
        stack.enter_context(closing(pools))
        stack.callback(lambda: [worker.end() for worker in pools.workers.values()])
        stack.callback(lambda: (directory / "workers.log").write_text(pools.logs()))
        return Storm(cluster, pools, Random(seed)).blow(seconds)
