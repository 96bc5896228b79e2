"""Facts and rules about the server: kind and version, memory, persistence, connections and clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

from redis.exceptions import ResponseError

from ..clock import SECOND_US, SHOWN_FOR_S, ClockStep
from ..scheduler.reader import Reader
from ..schema.keys import SCHEMA
from ..schema.values import decode_text
from .facts import ClockStepSeen, Facts, ServerFacts
from .finding import Finding, with_full_stop


def gather_server(reader: Reader, client: Any) -> ServerFacts:
    """Return the facts of the server behind *reader* and *client*."""
    before_s = time.time()
    server_s = reader.now_us() / SECOND_US
    after_s = time.time()
    schema, step = reader.ask([("get", reader.key("schema")), ("hget", reader.key("clock"), "stepped")])
    common: dict[str, Any] = {
        "schema": decode_text(schema).partition(" ")[0] if schema is not None else None,
        "clock_here_s": outside_limits(server_s, before_s, after_s) * -1,
        "stepped": _stepped(step, server_s),
    }
    try:
        info = client.info("everything")
    except ResponseError as exc:
        return ServerFacts(refused=str(exc), **common)
    kind, version = _kind_and_version(info)
    return ServerFacts(
        kind=kind,
        version=version,
        cluster=bool(info.get("cluster_enabled")),
        replicas=info.get("connected_slaves"),
        replica=info.get("role") == "slave",
        policy=str(info.get("maxmemory_policy", "")),
        used=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        of_machine=int(info.get("total_system_memory", 0)),
        aof=bool(info.get("aof_enabled")),
        save=_save(client),
        failing=_failing(info),
        clients=int(info.get("connected_clients", 0)),
        max_clients=int(info.get("maxclients", 0)),
        **common,
    )


def outside_limits(moment: float, first: float, last: float) -> float:
    """Return the distance of *moment* to the range from *first* to *last*: negative before the range, 0 within."""
    return max(0.0, moment - last) + min(0.0, moment - first)


def _stepped(field: bytes | None, server_s: float) -> ClockStepSeen | None:
    """Return the last recent step of the server's clock. Its time can be in the future, after a later step."""
    step = ClockStep.parse(decode_text(field))
    if step is None:
        return None
    ago_s = abs(server_s - step.at_us / SECOND_US)
    return ClockStepSeen(step.size_us / SECOND_US, ago_s) if ago_s < SHOWN_FOR_S else None


def _kind_and_version(info: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    for kind in ("valkey", "dragonfly"):
        if f"{kind}_version" in info:
            return kind, _version(str(info[f"{kind}_version"]))
    return str(info.get("server_name") or "redis"), _version(str(info.get("redis_version", "0")))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-")[0].lstrip("v").split(".") if part.isdigit())


def _save(client: Any) -> str | None:
    """Return the server's setting for snapshots, or None if CONFIG is not available or not permitted."""
    with suppress(ResponseError):
        return str(client.config_get("save").get("save", ""))
    return None


def _failing(info: dict[str, Any]) -> str | None:
    if info.get("aof_last_write_status") == "err":
        return "append-only file"
    return "snapshot" if info.get("rdb_last_bgsave_status") == "err" else None


#: Oldest tested version, by kind of server.
TESTED = {"redis": (7, 0), "valkey": (8, 0)}

#: Fraction of a limit that causes a warning.
NEARLY_FULL = 0.9

#: Maximum tolerated difference between two clocks, in seconds.
CLOCK_S = 5.0

ServerRule = Callable[[Facts], Iterator[Finding]]


def _server_rule(rule: Callable[[ServerFacts], Iterator[Finding]]) -> ServerRule:
    """Convert a rule about a server to a rule about facts, without findings if the server is unknown."""

    @wraps(rule)
    def of_facts(facts: Facts) -> Iterator[Finding]:
        if facts.server is not None and facts.server.refused is None:
            yield from rule(facts.server)

    return of_facts


def down(facts: Facts) -> Iterator[Finding]:
    if facts.down is not None:
        yield Finding(
            "broker-down",
            f"The broker {facts.app.broker} does not answer correctly: {with_full_stop(facts.down)}",
            "Check that the server runs, that this machine can reach it, and that user and password are right. "
            "Nothing else of server and workers was checked.",
        )


def unknown(facts: Facts) -> Iterator[Finding]:
    if facts.server is not None and facts.server.refused is not None:
        yield Finding(
            "server-unknown",
            f"This user may not ask the server for its state ({facts.server.refused}): version, memory, eviction and "
            "persistence were not checked.",
            "Run this with a user that has +info, and +config|get for persistence.",
        )


def cohorts_differ(facts: Facts) -> Iterator[Finding]:
    other = facts.other_map
    if other is not None:
        yield Finding(
            "cohorts-differ",
            f"The fleet's map of cohorts is {other.in_force or 'no cohorts'!r} (revision {other.revision}), and this "
            f"app has {other.own or 'no cohorts'!r} in affinity_cohorts: its processes are refused. Workers and jobs "
            "were not checked.",
            "Give this app the fleet's map, or have the fleet take this one: 'Split a fleet into cohorts' in the docs "
            "has the steps.",
        )


@_server_rule
def version(server: ServerFacts) -> Iterator[Finding]:
    tested = TESTED.get(server.kind)
    shown = f"{server.kind} {'.'.join(map(str, server.version))}"
    if tested is None:
        yield Finding(
            "server-untested", f"The server calls itself {shown}.", "Only Redis and Valkey are tested: use one of them."
        )
    elif server.version < tested:
        old = server.kind == "redis"
        yield Finding(
            "server-too-old" if old else "server-untested",
            f"The server is {shown}; {server.kind} is tested from {'.'.join(map(str, tested))} on.",
            "Upgrade the server.",
        )


def cluster(facts: Facts) -> Iterator[Finding]:
    if facts.server is not None and facts.server.cluster and not facts.app.cluster:
        yield Finding(
            "cluster",
            "The server is a node of a cluster, and the broker's URL names this node alone: the fleet stands still "
            "once another node has its keys.",
            "Write redis-cluster:// or rediss-cluster:// in broker_url.",
        )


def cluster_results(facts: Facts) -> Iterator[Finding]:
    if facts.app.results_on_a_node:
        yield Finding(
            "cluster-results",
            "result_backend names a node of a cluster, which Celery takes for a server of its own: the node refuses "
            "what other nodes have, and results are lost.",
            "Write redis-cluster:// or rediss-cluster:// in result_backend.",
        )


def cluster_no_replica(facts: Facts) -> Iterator[Finding]:
    if facts.app.cluster and facts.server is not None and facts.server.replicas == 0:
        yield Finding(
            "cluster-no-replica",
            "The node that has the fleet's keys has no replica that follows: nobody takes over when it dies.",
            "Add a replica to it (CLUSTER REPLICATE).",
        )


def cluster_lists(facts: Facts) -> Iterator[Finding]:
    if facts.app.cluster and facts.app.ingests and facts.server is not None:
        yield Finding(
            "cluster-lists",
            "Messages of producers without celery_affinity are not taken over from a cluster: stock Celery cannot "
            "publish there, and a list under a queue's own name is on any node.",
            "Give producers in Python this transport, and others the HTTP interface; then set affinity_ingest = False.",
        )


@_server_rule
def replica(server: ServerFacts) -> Iterator[Finding]:
    if server.replica:
        yield Finding(
            "replica",
            "The broker's URL leads to a replica: it takes no writes, so nothing can be published or acked.",
            "Point the URL at the master, or use sentinel://, which finds it after each failover.",
        )


def schema(facts: Facts) -> Iterator[Finding]:
    if facts.server is not None and facts.server.schema not in (None, str(SCHEMA)):
        yield Finding(
            "schema",
            f"The data on the server has schema {facts.server.schema}, and this release works with schema {SCHEMA} "
            "only: its workers do not start. Workers and jobs were not checked.",
            f"Deploy a release that works with schema {facts.server.schema}, or give this release a namespace of its "
            "own: 'A schema error after a deploy' in the docs has the steps.",
        )


@_server_rule
def eviction(server: ServerFacts) -> Iterator[Finding]:
    if server.policy.startswith("allkeys"):
        yield Finding(
            "eviction",
            f"maxmemory-policy is {server.policy}: once its memory is full, the server silently drops jobs.",
            "CONFIG SET maxmemory-policy noeviction, and in its configuration: publishing then fails with a clear "
            "error, and running jobs go on.",
        )


@_server_rule
def memory(server: ServerFacts) -> Iterator[Finding]:
    todo = (
        "Find out what fills it (waiting jobs: `celery affinity status`; results: result_expires; dead letters: "
        "`celery affinity dead list`), add workers, or give it more memory."
    )
    limit, of_what = (
        (server.maxmemory, "maxmemory") if server.maxmemory else (server.of_machine, "the machine's memory")
    )
    share = server.used / limit if limit else 0.0
    if server.maxmemory and share >= 1:
        yield Finding("memory-full", "The server's memory is full (maxmemory): publishing fails.", todo)
    elif share >= NEARLY_FULL:
        yield Finding("memory-nearly-full", f"The server uses {share:.0%} of {of_what}.", todo)
    if not server.maxmemory:
        yield Finding(
            "memory-unlimited",
            "The server has no maxmemory: if jobs pile up, the kernel may end it.",
            "Set maxmemory, with noeviction, below the memory of the machine (snapshots need memory as well).",
        )


@_server_rule
def persistence(server: ServerFacts) -> Iterator[Finding]:
    if server.aof:
        return
    todo = "Set appendonly yes (appendfsync everysec loses a second at most, and only if the machine dies)."
    if server.save == "":
        yield Finding(
            "persistence-off",
            "The server keeps nothing on disk: a crash or a restart loses every waiting job, and the ends of jobs that "
            "run meanwhile.",
            todo,
        )
    else:
        often = f" ({server.save})" if server.save else ""
        yield Finding(
            "snapshots-only",
            f"The server has no append-only file: a crash of it loses all changes since its last snapshot{often}, and "
            "jobs that ended since then run again.",
            todo,
        )


@_server_rule
def persistence_fails(server: ServerFacts) -> Iterator[Finding]:
    if server.failing is not None:
        yield Finding(
            "persistence-fails",
            f"The server could not write its {server.failing} the last time it tried: it refuses writes "
            "(MISCONF) until it can.",
            "See its log. The usual cause is a full disk, or too little memory for a fork.",
        )


@_server_rule
def connections(server: ServerFacts) -> Iterator[Finding]:
    if server.max_clients and server.clients >= server.max_clients * NEARLY_FULL:
        yield Finding(
            "connections-nearly-full",
            f"The server has {server.clients} of at most {server.max_clients} connections: soon it accepts no more.",
            "Raise maxclients, or see who holds them (CLIENT LIST): each worker needs some six.",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    if facts.server is not None and abs(facts.server.clock_here_s) > CLOCK_S:
        yield Finding(
            "clock-here",
            f"This machine's clock is {apart(facts.server.clock_here_s)} the server's: what is published here with an "
            "absolute eta= or expires= starts or ends that much off. (A number of seconds is not.)",
            "Have both machines keep time (NTP).",
        )


def clock_stepped(facts: Facts) -> Iterator[Finding]:
    step = None if facts.server is None else facts.server.stepped
    if step is not None:
        early = step.size_s > 0
        yield Finding(
            "clock-stepped",
            f"The server's clock went {'forward' if early else 'back'} by {abs(step.size_s):,.0f} s, "
            f"{step.ago_s / 60:,.0f} min ago: it was set, or another server took over. What waited then for a time "
            "(eta, countdown, expires, the end of a pause) is due that much "
            f"{'earlier' if early else 'later'}. Due times are not moved.",
            "Have the servers keep time (NTP). If a job must not run at the wrong time, cancel and publish it again: "
            "`celery -A ... affinity jobs --state scheduled` lists what waits.",
        )


def apart(ahead_s: float) -> str:
    return f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"


RULES = (
    down,
    unknown,
    version,
    cluster,
    cluster_results,
    cluster_no_replica,
    cluster_lists,
    replica,
    schema,
    cohorts_differ,
    eviction,
    memory,
    persistence,
    persistence_fails,
    connections,
    clock,
    clock_stepped,
)
