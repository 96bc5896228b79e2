"""What a cluster costs a fleet that is on one of its nodes, beside one server: drains in turn."""

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

#: CPU time of worker and server for a task: what others do on the machine changes it less than the rate.
CPU = "cpu_us"


class ClusterBench(Bench):
    """Three primaries. They have no replicas: the server beside them has none either."""

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
        """Have *count* messages wait. They are published in each round: a node has one database to keep them in."""
        self.client.flushall()
        self.publisher(variant).publish(count, way)


@dataclass(frozen=True)
class Placed:
    """A worker beside which a bench runs *where*."""

    where: str
    bench: Bench
    beside: str | None = None

    @property
    def name(self) -> str:
        return named(self.where)


def named(where: str) -> str:
    return f"{VARIANT.name}, on {where}"


VARIANT = Variant(AFFINITY, "solo")
SERVER, CLUSTER = "a server", "a cluster"


def measured(chosen: Any, server: str | None, rounds: int, tasks: int) -> Part:
    def measure(placed: Placed) -> dict[str, float]:
        found = drain(placed.bench, VARIANT, tasks)
        return {"rate": found["rate"], CPU: found["worker_us"] + found["server_us"], **found}

    with ExitStack() as stack:
        benches = {SERVER: stack.enter_context(Bench(server)), CLUSTER: stack.enter_context(ClusterBench())}
        subjects = [Placed(SERVER, benches[SERVER]), Placed(CLUSTER, benches[CLUSTER], named(SERVER))]
        return in_turn(chosen(subjects), rounds, measure)


def cost(results: Results) -> float | None:
    """Return the CPU time of a task on a cluster, as a ratio to that on a server."""
    return results[PART].ratio(named(CLUSTER), named(SERVER), CPU) if PART in results else None
