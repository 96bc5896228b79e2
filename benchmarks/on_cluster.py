"""Compare drains on one node of a cluster with drains on a single server, in turn."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import redis

from celery_affinity.embedded import EmbeddedCluster
from celery_affinity.schema.keys import Keys

from .bench import LIVE, Bench, in_turn
from .drain import drain
from .results import Part, Results
from .systems import AFFINITY, Variant

PART = "cluster"

#: CPU time in µs of worker and server per task. Other load on the machine affects it less than the rate.
CPU = "cpu_us"


class ClusterBench(Bench):
    """A bench on a cluster of three primaries without replicas, because the single server has no replicas either."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = EmbeddedCluster(replicas=False)
        self.server: Any = self.cluster

    def url(self, database: int = LIVE) -> str:
        return self.cluster.url

    def client_of(self, database: int) -> redis.Redis:
        owner = self.cluster.owner_of(Keys().base)
        assert owner is not None, "all nodes run"
        return redis.Redis(port=owner.port)

    def restock(self, variant: Variant, count: int, way: str = "delay") -> None:
        """Replace the backlog with *count* new messages: a cluster node has only one database, so it keeps no copy."""
        self.client.flushall()
        self.publisher(variant).publish(count, way)


@dataclass(frozen=True)
class Placed:
    """A worker whose bench runs on *where*: a server or a cluster."""

    where: str
    bench: Bench
    baseline: str | None = None

    @property
    def name(self) -> str:
        return named(self.where)


def named(where: str) -> str:
    return f"{VARIANT.name}, on {where}"


VARIANT = Variant(AFFINITY, "solo")
SERVER, CLUSTER = "a server", "a cluster"


def measured(chosen: Any, server: str | None, rounds: int, tasks: int) -> Part:
    def measure(placed: Placed) -> dict[str, float]:
        figures = drain(placed.bench, VARIANT, tasks)
        return {"rate": figures["rate"], CPU: figures["worker_us"] + figures["server_us"], **figures}

    with ExitStack() as stack:
        benches = {SERVER: stack.enter_context(Bench(server)), CLUSTER: stack.enter_context(ClusterBench())}
        subjects = [Placed(SERVER, benches[SERVER]), Placed(CLUSTER, benches[CLUSTER], named(SERVER))]
        return in_turn(chosen(subjects), rounds, measure)


def cost(results: Results) -> float | None:
    """Return the ratio of the CPU time per task on a cluster to the CPU time per task on a server."""
    return results[PART].ratio(named(CLUSTER), named(SERVER), CPU) if PART in results else None
