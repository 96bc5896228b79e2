"""The cost of each script and report with a large queue. ``make million`` runs it with 1,000,000 pending jobs.

    python -m tests.whole.large                                    # all SCALES
    python -m tests.whole.large --jobs 1000000 --types 20          # a custom scale
    python -m tests.whole.large --merging 1000000                  # only merged calls, compared with plain jobs

Scripts are timed by the server (SLOWLOG, from 0.1 ms), reports by the client. The exit code is 1 if a goal is missed.
"""

import argparse
import os
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields

import redis

from celery_affinity.embedded import EmbeddedServer

from ...support.pages import RESULTS, write_block
from . import merging
from .fleet import BATCH, HINTS_OF_ONE, NOTED_FROM_US, LargeFleet

#: Maximum duration in ms of 99.9 % of a script's calls.
GOAL_SCRIPT_MS = 5

#: Number of merge keys, and number of calls with one key.
MERGE_KEYS, CALLS_OF_ONE_KEY = 1_000_000, 10_000

#: Maximum median duration in ms of `explain`.
GOAL_EXPLAIN_MS = 50


@dataclass(frozen=True)
class Scale:
    """The sizes to measure; without a feature, its number is 0."""

    jobs: int = 1_000_000
    types: int = 20
    #: Number of workers with one slot and one to three types each; two large workers are added.
    workers: int = 0
    rounds: int = 300
    #: Number of exclusive keys of all jobs.
    keys: int = 0
    #: Limit of each type.
    limit: int = 0
    #: Number of tenants; they take turns by share, or by age if they have a minimum.
    tenants: int = 0
    minimum: int = 0
    hints: int = 0

    def __str__(self):
        workers = f", {self.workers:,} more workers that join and heartbeat" if self.workers else ""
        keys = f", {self.keys:,} exclusive key{'s' if self.keys > 1 else ''}" if self.keys else ""
        limit = f" with a limit of {self.limit:,} each" if self.limit else ""
        quota = f"a minimum of {self.minimum} each" if self.minimum else "shares"
        tenants = f", {self.tenants:,} tenants with {quota}" if self.tenants else ""
        hints = f", {self.hints:,} hints, of which each of these workers holds {HINTS_OF_ONE}" if self.hints else ""
        return f"{self.jobs:,} jobs of {self.types:,} types{limit}{keys}{tenants}{workers}{hints}"


SCALES = (
    Scale(),
    Scale(types=1000, workers=5000),
    Scale(types=1_000_000),
    Scale(keys=1_000_000),
    Scale(jobs=10_000, types=1, keys=1),
    Scale(jobs=100_000, types=1000, limit=3),
    Scale(jobs=100_000, types=1, tenants=10_000),
    Scale(jobs=100_000, types=1, tenants=10_000, minimum=1),
    Scale(types=1, tenants=1_000_000),
    Scale(jobs=100_000, workers=5_000, hints=200),
)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.whole.large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for each in fields(Scale):
        parser.add_argument(f"--{each.name}", type=int, default=None, help=f"{each.default:,} by default")
    parser.add_argument("--merging", type=int, help=f"number of merge keys; by default {MERGE_KEYS:,} without a scale")
    parser.add_argument("--calls", type=int, default=CALLS_OF_ONE_KEY, help="calls with one key; 10,000 by default")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the results into benchmarks/results/million.md"
    )
    arguments = parser.parse_args()
    given = {each.name: value for each in fields(Scale) if (value := getattr(arguments, each.name)) is not None}
    keys = arguments.merging or (0 if given else MERGE_KEYS)
    scales = [Scale(**given)] if given else () if arguments.merging else SCALES
    measured = [(scale, *measure(scale)) for scale in scales]
    merged = measure_merging(keys, arguments.calls) if keys else []
    text = "\n".join([*(as_markdown(*each) for each in measured), *([merging.as_markdown(merged)] if merged else [])])
    print(text)
    if arguments.write_docs:
        write_block(RESULTS / "million.md", "million", text)
    slowest_ms = max((times.high for _, scripts, *_ in measured for times in scripts.values()), default=0)
    explained_ms = max((reports["explain"].median for _, _, reports, _ in measured), default=0)
    is_good = slowest_ms <= GOAL_SCRIPT_MS and explained_ms <= GOAL_EXPLAIN_MS
    sys.exit(0 if is_good and all(each.is_reached for each in merged) else 1)


@contextmanager
def prioritized_server():
    """Run a server with a higher priority than other processes."""
    with EmbeddedServer() as server:
        with suppress(PermissionError):  # nice values apply only within a session
            os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))
        yield server


def measure_merging(keys, calls):
    """Return the figures of merged calls compared with plain jobs, in separate databases."""
    with prioritized_server() as server:
        base = server.url.rpartition("/")[0]
        with redis.Redis.from_url(f"{base}/0") as plain, redis.Redis.from_url(f"{base}/1") as merged:
            found = merging.one_key((plain, merged), calls)
            return merging.many_keys((plain, merged), keys) + found


def measure(scale):
    """Return the times by name of scripts and of reports, and the times of a script that does nothing."""
    with prioritized_server() as server, redis.Redis.from_url(server.url) as client:
        tenants = {"tenants": scale.tenants, "minimum": scale.minimum}
        fleet = LargeFleet(client, scale.types, keys=scale.keys, hints=scale.hints, **tenants)
        client.config_set("slowlog-max-len", 10_000)
        client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
        fleet.limit_types(scale.limit)
        fleet.note_times()
        client.config_set("slowlog-log-slower-than", -1)
        began_s = time.monotonic()
        last = min(BATCH, scale.jobs)
        fleet.fill(scale.jobs - last)
        print(f"{scale.jobs:,} jobs published in {time.monotonic() - began_s:.0f} s", flush=True)
        client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
        fleet.fill(scale.jobs, since=scale.jobs - last)
        fleet.scheduler.calls["publish"] += last
        fleet.note_times()  # a long slow log would take the server long to reset
        fleet.crowd(scale.workers)
        fleet.run_rounds(scale.rounds)
        reports = fleet.report_times()
        fleet.purge()
        return fleet.script_times(), reports, fleet.nothing_times()


def as_markdown(scale, scripts, reports, nothing):
    """Return a table; *nothing* has the times of a script that does nothing, which the machine causes.

    The column `99.9 %` omits one call in a thousand, since other processes run on the machine.
    """
    rows = [("", "calls", "median", "99.9 %", "longest"), ("---", *("---:",) * 4)]
    found = {f"`{name}`": times for name, times in scripts.items()}
    found |= {f"report: {name}": times for name, times in reports.items()}
    for what, times in {**found, "a script that does nothing": nothing}.items():
        rows.append((what, f"{times.calls:,}", *(_shown(value) for value in times[1:])))
    return "\n".join([f"{scale}, in ms:", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _shown(ms):
    return f"< {NOTED_FROM_US / 1000}" if ms <= NOTED_FROM_US / 1000 else f"{ms:.1f}"


if __name__ == "__main__":
    main()
