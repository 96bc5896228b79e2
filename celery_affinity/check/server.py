"""Facts and findings about the server: kind and version, memory, persistence, connections and clock."""

import re
import time
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from ..clock import SECOND_US, SHOWN_FOR_S, ClockStep
from ..scheduler.reader import Reader
from ..schema.keys import SCHEMA
from ..schema.values import decode_text
from .facts import AppFacts, ClockStepSeen, Facts, ServerFacts, server_of_url
from .finding import Level, Problem, Problems, all_facts, app_of, finding, server_of, with_full_stop


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
    return ServerFacts(info, run_id=str(info.get("run_id", "")), save=_save(client), **common)


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


def _save(client: Any) -> str | None:
    """Return the server's setting for snapshots, or None if CONFIG is not available or not permitted."""
    with suppress(ResponseError):
        return str(client.config_get("save").get("save", ""))
    return None


#: Oldest tested version, by kind of server.
TESTED = {"redis": (7, 0), "valkey": (8, 0)}

#: Fraction of a limit that causes a warning.
NEARLY_FULL = 0.9

#: Maximum tolerated difference between two clocks, in seconds.
CLOCK_S = 1.0


@finding("broker-down", Level.ERROR, all_facts)
def down(facts: Facts) -> Problems:
    """The server refuses connections, does not answer within 5 s, does not know the user, or stopped during the check.
    The remaining checks were skipped.
    """
    if facts.down is not None:
        yield Problem(
            f"The broker {facts.app.broker} does not answer correctly: {with_full_stop(facts.down)}",
            "Check that the server runs, that this machine can reach it, and that user and password are right. "
            "Nothing else of server and workers was checked.",
        )


@finding("server-unknown", Level.NOTE, lambda facts: facts.server)
def unknown(server: ServerFacts) -> Problems:
    """The broker's user may not call `INFO`."""
    if server.refused is not None:
        yield Problem(
            f"This user must not read the server's state ({server.refused}): version, memory, eviction and "
            "persistence were not checked.",
            "Run this with a user that has +info, and +config|get for persistence.",
        )


@finding("server-too-old", Level.ERROR, server_of)
def too_old(server: ServerFacts) -> Problems:
    """Redis before 7.0."""
    if server.kind == "redis" and server.version < TESTED["redis"]:
        yield _tested_from(server)


@finding("server-untested", Level.WARNING, server_of)
def untested(server: ServerFacts) -> Problems:
    """Valkey before 8.0, or neither Redis nor Valkey."""
    tested = TESTED.get(server.kind)
    if tested is None:
        yield Problem(
            f"The server calls itself {_shown(server)}.", "Only Redis and Valkey are tested: use one of them."
        )
    elif server.version < tested and server.kind != "redis":
        yield _tested_from(server)


def _shown(server: ServerFacts) -> str:
    return f"{server.kind} {'.'.join(map(str, server.version))}"


def _tested_from(server: ServerFacts) -> Problem:
    tested = ".".join(map(str, TESTED[server.kind]))
    return Problem(f"The server is {_shown(server)}; {server.kind} is tested from {tested} on.", "Upgrade the server.")


@finding("cluster", Level.WARNING, all_facts)
def cluster(facts: Facts) -> Problems:
    """The server is a node of a cluster, and the URL names only this node. Write `redis-cluster://`."""
    if facts.server is not None and facts.server.info.get("cluster_enabled") and not facts.app.cluster:
        yield Problem(
            "The server is a node of a cluster, and the broker's URL names only this node: the fleet stops "
            "once another node has its keys.",
            "Write redis-cluster:// or rediss-cluster:// in broker_url.",
        )


@finding("cluster-results", Level.ERROR, app_of)
def cluster_results(app: AppFacts) -> Problems:
    """`result_backend` names a node of a cluster as if it were a server, or is spelt `redis+cluster://`. Write
    `redis-cluster://`.
    """
    backend, broker = app.conf.result_backend, str(app.conf.broker_write_url)
    if not isinstance(backend, str) or "://" not in backend:
        return
    clusters = [url for url in broker.split(";") if "cluster://" in url]
    nodes = {server_of_url(re.sub(r"^\w+[+-]cluster:", "redis:", url)) for url in clusters}
    scheme = backend.partition("://")[0]  # of several nodes; kombu reads one
    if scheme.endswith("+cluster") or (not scheme.endswith("-cluster") and server_of_url(backend) in nodes):
        yield Problem(
            "result_backend names a node of a cluster, which Celery takes for a server of its own: the node refuses "
            "what other nodes have, and results are lost.",
            "Write redis-cluster:// or rediss-cluster:// in result_backend.",
        )


@finding("cluster-no-replica", Level.WARNING, all_facts)
def cluster_no_replica(facts: Facts) -> Problems:
    """The node that has the fleet's keys has no replica that follows: no node takes over when it dies."""
    if facts.app.cluster and facts.server is not None and facts.server.info.get("connected_slaves") == 0:
        yield Problem(
            "The node that has the fleet's keys has no replica that follows: no node takes over when it dies.",
            "Add a replica to it (CLUSTER REPLICATE).",
        )


@finding("cluster-lists", Level.NOTE, all_facts)
def cluster_lists(facts: Facts) -> Problems:
    """`affinity_ingest` is on, and has no effect on a cluster: stock Celery cannot publish there."""
    if facts.app.cluster and facts.app.settings.ingest and facts.server is not None:
        yield Problem(
            "Messages of producers without celery_affinity are not taken over from a cluster: stock Celery cannot "
            "publish there, and a list under a queue's own name is on any node.",
            "Give producers in Python this transport, and others the HTTP interface; then set affinity_ingest = False.",
        )


@finding("replica", Level.ERROR, server_of)
def replica(server: ServerFacts) -> Problems:
    """The URL leads to a read-only replica."""
    if server.info.get("role") == "slave":
        yield Problem(
            "The broker's URL leads to a replica: it takes no writes, so nothing can be published or acked.",
            "Point the URL at the master, or use sentinel://, which finds it after each failover.",
        )


@finding("schema", Level.ERROR, lambda facts: facts.server)
def schema(server: ServerFacts) -> Problems:
    """A release with another schema wrote the data. Workers and jobs were not checked."""
    if server.schema not in (None, str(SCHEMA)):
        yield Problem(
            f"The data on the server has schema {server.schema}, and this release works with schema {SCHEMA} "
            "only: its workers do not start. Workers and jobs were not checked.",
            f"Deploy a release that works with schema {server.schema}, or give this release a namespace of its "
            "own: 'A schema error after a deploy' in the docs has the steps.",
        )


@finding("cohorts-differ", Level.ERROR, all_facts)
def cohorts_differ(facts: Facts) -> Problems:
    """`affinity_cohorts` of this app is another map than the fleet's, so its processes are refused. Workers and jobs
    were not checked.
    """
    other = facts.other_map
    if other is not None:
        yield Problem(
            f"The fleet's map of cohorts is {other.in_force or 'no cohorts'!r} (revision {other.revision}), and this "
            f"app has {other.own or 'no cohorts'!r} in affinity_cohorts: its processes are refused. Workers and jobs "
            "were not checked.",
            "Give this app the fleet's map, or have the fleet take this one: 'Split a fleet into cohorts' in the docs "
            "has the steps.",
        )


@finding("eviction", Level.ERROR, server_of)
def eviction(server: ServerFacts) -> Problems:
    """`maxmemory-policy` is `allkeys-*`: a full server drops jobs. Set `noeviction`."""
    if server.policy.startswith("allkeys"):
        yield Problem(
            f"maxmemory-policy is {server.policy}: once its memory is full, the server silently drops jobs.",
            "CONFIG SET maxmemory-policy noeviction, and in its configuration: publishing then fails with a clear "
            "error, and running jobs go on.",
        )


_MAKE_ROOM = (
    "Find out what fills it (waiting jobs: `celery affinity status`; results: result_expires; dead letters: "
    "`celery affinity dead list`), add workers, or give it more memory."
)


@finding("memory-full", Level.ERROR, server_of)
def memory_full(server: ServerFacts) -> Problems:
    """`maxmemory` is reached: publishing fails. Jobs that are already there still run."""
    if 0 < server.number("maxmemory") <= server.number("used_memory"):
        yield Problem("The server's memory is full (maxmemory): publishing fails.", _MAKE_ROOM)


@finding("memory-nearly-full", Level.WARNING, server_of)
def memory_nearly_full(server: ServerFacts) -> Problems:
    """The server uses 90% of `maxmemory` or, without `maxmemory`, of the machine's memory."""
    maxmemory = server.number("maxmemory")
    limit = maxmemory or server.number("total_system_memory")
    of_what = "maxmemory" if maxmemory else "the machine's memory"
    share = server.number("used_memory") / limit if limit else 0.0
    if share >= NEARLY_FULL and not (maxmemory and share >= 1):
        yield Problem(f"The server uses {share:.0%} of {of_what}.", _MAKE_ROOM)


@finding("memory-unlimited", Level.NOTE, server_of)
def memory_unlimited(server: ServerFacts) -> Problems:
    """`maxmemory` is not set: the kernel kills a server that outgrows its machine."""
    if not server.number("maxmemory"):
        yield Problem(
            "The server has no maxmemory: if jobs pile up, the kernel may end it.",
            "Set maxmemory, with noeviction, below the memory of the machine (snapshots need memory as well).",
        )


_SET_APPENDONLY = "Set appendonly yes (appendfsync everysec loses a second at most, and only if the machine dies)."


@finding("persistence-off", Level.WARNING, server_of)
def persistence_off(server: ServerFacts) -> Problems:
    """Neither append-only file nor snapshots: a restart loses every waiting job."""
    if not server.info.get("aof_enabled") and server.save == "":
        yield Problem(
            "The server keeps nothing on disk: a crash or a restart loses every waiting job, and the ends of jobs that "
            "run meanwhile.",
            _SET_APPENDONLY,
        )


@finding("snapshots-only", Level.NOTE, server_of)
def snapshots_only(server: ServerFacts) -> Problems:
    """No append-only file: a crash loses all changes since the last snapshot."""
    if not server.info.get("aof_enabled") and server.save != "":
        often = f" ({server.save})" if server.save else ""
        yield Problem(
            f"The server has no append-only file: a crash of it loses all changes since its last snapshot{often}, and "
            "jobs that ended since then run again.",
            _SET_APPENDONLY,
        )


@finding("persistence-fails", Level.ERROR, server_of)
def persistence_fails(server: ServerFacts) -> Problems:
    """The last snapshot or write of the append-only file failed: the server refuses writes. The usual cause is a full
    disk.
    """
    failing = "snapshot" if server.info.get("rdb_last_bgsave_status") == "err" else None
    if server.info.get("aof_last_write_status") == "err":
        failing = "append-only file"
    if failing is not None:
        yield Problem(
            f"The server could not write its {failing} the last time it tried: it refuses writes "
            "(MISCONF) until it can.",
            "See its log. The usual cause is a full disk, or too little memory for a fork.",
        )


@finding("connections-nearly-full", Level.WARNING, server_of)
def connections(server: ServerFacts) -> Problems:
    """90% of `maxclients` are connected."""
    clients, max_clients = server.number("connected_clients"), server.number("maxclients")
    if max_clients and clients >= max_clients * NEARLY_FULL:
        yield Problem(
            f"The server has {clients} of at most {max_clients} connections: soon it accepts no more.",
            "Raise maxclients, or see who holds them (CLIENT LIST): each worker needs some six.",
        )


@finding("clock-here", Level.WARNING, lambda facts: facts.server)
def clock(server: ServerFacts) -> Problems:
    """The clock of this machine differs by more than 1 s from the server's. An absolute `eta=`, `expires=` or
    `deadline=` differs by the same time.
    """
    if abs(server.clock_here_s) > CLOCK_S:
        yield Problem(
            f"This machine's clock is {apart(server.clock_here_s)} the server's: what is published here with an "
            "absolute eta=, expires= or deadline= starts or ends that much off. (A number of seconds is not.)",
            "Have both machines keep time (NTP).",
        )


@finding("clock-stepped", Level.WARNING, lambda facts: facts.server)
def clock_stepped(server: ServerFacts) -> Problems:
    """Within the last day the server's clock was set, or a server with another clock took over. ETAs, countdowns,
    expiries and ends of pauses that were set before are due that much earlier or later: due times are not moved.
    """
    step = server.stepped
    if step is not None:
        early = step.size_s > 0
        yield Problem(
            f"The server's clock went {'forward' if early else 'back'} by {abs(step.size_s):,.0f} s, "
            f"{step.ago_s / 60:,.0f} min ago: it was set, or another server took over. What waited then for a time "
            "(eta, countdown, expires, the end of a pause) is due that much "
            f"{'earlier' if early else 'later'}. Due times are not moved.",
            "Have the servers keep time (NTP). If a job must not run at the wrong time, cancel and publish it again: "
            "`celery -A ... affinity jobs --state scheduled` lists what waits.",
        )


def apart(ahead_s: float) -> str:
    return f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
