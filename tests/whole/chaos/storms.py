"""Storms: combinations of faults, and their pace."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from . import faults, operating
from .faults import Fault


@dataclass(frozen=True)
class Storm:
    name: str
    #: Description for the table.
    what: str
    faults: tuple[Fault, ...]
    #: Min and max seconds between two faults.
    pause_s: tuple[float, float]
    replicated: bool = False
    #: Percentage of jobs that take about a second. With many, requeued jobs have to wait.
    long: int = 3
    #: Percentage of merging bursts. From 10, some reporting processes die.
    merging: int = 0
    #: Percentage of long preemptible jobs.
    stoppable: int = 0


STORMS = (
    Storm(
        "workers killed",
        "`kill -9` of workers, each replaced at once under the same name",
        (faults.kill_worker,),
        (0.3, 1.0),
    ),
    Storm("pool processes killed", "`kill -9` of prefork pool processes", (faults.kill_pool_process,), (0.05, 0.2)),
    Storm(
        "publishers, dispatchers and guards killed",
        "`kill -9` of publishers in the middle of a publish, of a standalone dispatcher, and of workers' guards",
        (faults.kill_publisher, faults.kill_publisher, faults.kill_dispatcher, faults.kill_guard),
        (0.3, 1.2),
    ),
    Storm(
        "workers suspended",
        "`SIGSTOP` of workers, for a moment or past the worker timeout, then `SIGCONT`",
        (faults.suspend_worker, faults.suspend_worker, faults.pause_worker),
        (1, 3),
        long=9,
    ),
    Storm(
        "workers restarted", "`SIGTERM`: workers drain and leave while new ones start", (faults.restart_worker,), (1, 3)
    ),
    Storm(
        "loops blocked, names shared",
        "event loops that do not run for longer than the worker timeout, also at `SIGTERM`; two workers of one name",
        (faults.block_loop, faults.restart_blocked_worker, faults.start_twin),
        (0.6, 2),
    ),
    Storm(
        "server killed, AOF always",
        "`kill -9` of the server or loss of its power, with `appendfsync always`; back at once or after an outage",
        (faults.kill_server, faults.lose_power),
        (2, 4),
    ),
    Storm(
        "power lost, AOF everysec",
        "the server loses power with `appendfsync everysec`: the last second of its file is cut off",
        (faults.lose_power_everysec,),
        (1, 3),
    ),
    Storm("data lost", "the server comes back empty", (faults.lose_data,), (4, 6)),
    Storm(
        "failover",
        "the master is killed, Sentinel promotes its replica",
        (faults.fail_over,),
        (3, 5),
        replicated=True,
    ),
    Storm(
        "switch-overs",
        "Sentinel makes the replica the master and the master a replica, as planned, also while connections end; the "
        "master is killed",
        (faults.switch_over, faults.switch_over, faults.switch_over, faults.fail_over, faults.kill_clients),
        (1, 3),
        replicated=True,
    ),
    Storm(
        "results killed",
        "`kill -9` of the results' server, which keeps its data or comes back empty, and of both servers together",
        (faults.kill_results, faults.kill_results, faults.lose_results, faults.kill_both_servers),
        (1, 3),
    ),
    Storm(
        "results paused",
        "the results' server takes connections and answers nobody, for up to 3 s",
        (faults.pause_results,),
        (0.3, 2),
    ),
    Storm(
        "connections cut",
        "`CLIENT KILL` of all, resets by a proxy, also in the middle of a reply; `FUNCTION FLUSH`",
        (faults.kill_clients, faults.cut_link, faults.cut_link, faults.cut_in_reply, faults.flush_functions),
        (0.2, 0.8),
    ),
    Storm("functions flushed", "`FUNCTION FLUSH`, again and again", (faults.flush_functions,), (0.02, 0.3)),
    Storm(
        "connections slow or half-open",
        "each chunk held back for up to 0.3 s; connections that go silent without an end, also past the worker timeout",
        (faults.delay_link, faults.silence_link, faults.silence_link, faults.silence_link),
        (0.4, 1.5),
    ),
    Storm(
        "connections half-open, processes killed",
        "connections that go silent or slow, and `kill -9` of workers, pool processes, publishers and dispatchers; no "
        "server is lost",
        (
            *(faults.silence_link, faults.silence_link, faults.delay_link),
            *(faults.kill_worker, faults.kill_pool_process, faults.kill_publisher, faults.kill_dispatcher),
        ),
        (0.4, 1.5),
    ),
    Storm(
        "memory full",
        "`maxmemory` reached with `noeviction`: publishes are refused, what is there is worked off",
        (faults.fill_memory,),
        (6, 8),
    ),
    Storm(
        "pauses, limits",
        "types, keys and everything paused, with and without an end; limits of types and keys changed; while workers "
        "and pool processes are killed, connections cut and scripts flushed",
        (
            *(operating.pause_something,) * 4,
            *(operating.change_limit, operating.change_quota) * 3,
            *(faults.kill_worker, faults.kill_pool_process, faults.pause_worker),
            *(faults.cut_link, faults.flush_functions),
        ),
        (0.1, 0.6),
    ),
    Storm(
        "reserves",
        "slots that jobs of a class leave to others, changed again and again; while pool processes and guards are "
        "killed, connections cut and scripts flushed",
        (
            *(operating.change_reserve,) * 4,
            *(faults.kill_pool_process, faults.kill_guard, faults.kill_clients),
            *(faults.cut_link, faults.flush_functions),
        ),
        (0.1, 0.6),
        long=9,
    ),
    Storm(
        "tenants below their minimum",
        "slots full of long jobs that may be stopped for other tenants, whose quotas change; while workers and pool "
        "processes are killed, connections cut and scripts flushed",
        (
            *(operating.change_quota,) * 8,
            *(faults.kill_worker, faults.kill_pool_process, faults.pause_worker),
            *(faults.kill_clients, faults.cut_link, faults.flush_functions),
        ),
        (0.3, 1.0),
        stoppable=6,
    ),
    Storm(
        "hints of locality",
        "hints, and how they and the free slots of a worker are preferred, changed again and again; while workers, "
        "pool processes and the server are killed, connections cut and scripts flushed",
        (
            *(operating.change_preference,) * 5,
            *(faults.kill_worker, faults.kill_worker, faults.restart_worker, faults.kill_pool_process),
            *(faults.kill_server, faults.kill_clients, faults.cut_link, faults.flush_functions),
        ),
        (0.2, 0.8),
        long=4,
    ),
    Storm(
        "merged calls",
        "bursts of calls that merge, of tasks that take the first, the last or all of them, fold, split and retry; "
        "pool processes die while they tell callers, workers, dispatchers and servers are killed, the results' server "
        "is down, connections cut and types paused",
        (
            *(faults.kill_pool_process, faults.kill_pool_process, faults.kill_worker, faults.kill_dispatcher),
            *(faults.kill_results, faults.pause_results, faults.kill_server, faults.cut_link, faults.kill_clients),
            *(operating.pause_something,) * 6,
        ),
        (0.2, 0.8),
        merging=60,
    ),
    Storm(
        "callers half told",
        "bursts of calls that merge; pool processes die while they tell callers, also between the result of the first "
        "one and the others; types paused, so that many calls merge",
        (operating.pause_something, operating.pause_something, faults.pause_worker, faults.kill_guard),
        (0.3, 1.0),
        merging=60,
    ),
    Storm(
        "mixed",
        "all of these but lost data and full memory, in one",
        (
            *(faults.kill_worker, faults.kill_worker, faults.kill_pool_process, faults.kill_pool_process),
            *(faults.kill_publisher, faults.kill_dispatcher, faults.suspend_worker, faults.pause_worker),
            *(faults.block_loop, faults.kill_guard, faults.restart_worker, faults.start_twin, faults.kill_server),
            *(faults.kill_results, faults.pause_results, faults.lose_power, faults.kill_clients),
            *(faults.flush_functions, faults.cut_link, faults.cut_in_reply, faults.delay_link, faults.silence_link),
            *(operating.pause_something, operating.change_limit, operating.change_quota, operating.change_reserve) * 3,
            *(operating.change_preference,) * 2,
        ),
        (0.3, 0.9),
        stoppable=1,
    ),
    Storm(
        "mixed, replicated",
        "processes killed and suspended, connections cut, scripts flushed, types and keys paused and limited, around "
        "failovers and switch-overs",
        (
            *(faults.kill_worker, faults.kill_pool_process, faults.kill_publisher, faults.suspend_worker),
            *(faults.kill_clients, faults.flush_functions, faults.restart_worker, faults.fail_over, faults.switch_over),
            *(operating.pause_something, operating.change_limit, operating.change_quota, operating.change_reserve),
        ),
        (0.8, 2),
        replicated=True,
        stoppable=1,
    ),
)


def plan(rng: Random, only: str = "") -> Iterator[Storm]:
    """Yield storms endlessly, in rounds of random order. *only*: text in the names of the storms."""
    chosen = [storm for storm in STORMS if only in storm.name]
    while True:
        yield from rng.sample(chosen, len(chosen))
