"""A large queue: the cost of each script and each report there. ``make million`` runs it with 1,000,000 pending jobs.

    python -m tests.whole.large                                    # all of SCALES, for the docs
    python -m tests.whole.large --jobs 1000000 --types 20          # one of your own

Times of scripts are the server's own (SLOWLOG, from 0.1 ms on), times of reports are a user's waits.
"""

import argparse
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, fields

import redis

from celery_affinity.embedded import EmbeddedServer

from ...support.pages import RELIABILITY, write_block
from .fleet import BATCH, NOTED_FROM_US, LargeFleet

#: Longest that 99.9 % of a script's calls may take, ms.
GOAL_SCRIPT_MS = 5

#: Longest that half of all calls of `explain` may take, ms.
GOAL_EXPLAIN_MS = 50


@dataclass(frozen=True)
class Scale:
    """The sizes to measure. *workers*: of one slot and one to three types each, besides two large ones.

    *keys*: number of exclusive keys of all these jobs; 0: they have none. *limit*: of each type; 0: it has none.
    """

    jobs: int = 1_000_000
    types: int = 20
    workers: int = 0
    rounds: int = 300
    keys: int = 0
    limit: int = 0

    def __str__(self):
        workers = f", {self.workers:,} more workers that join and beat" if self.workers else ""
        keys = f", {self.keys:,} exclusive key{'s' if self.keys > 1 else ''}" if self.keys else ""
        limit = f" with a limit of {self.limit:,} each" if self.limit else ""
        return f"{self.jobs:,} jobs of {self.types:,} types{limit}{keys}{workers}"


SCALES = (
    Scale(),
    Scale(types=1000, workers=5000),
    Scale(types=1_000_000),
    Scale(keys=1_000_000),
    Scale(jobs=10_000, types=1, keys=1),
    Scale(jobs=100_000, types=1000, limit=3),
)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.whole.large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for each in fields(Scale):
        parser.add_argument(f"--{each.name}", type=int, default=None, help=f"{each.default:,} by default")
    parser.add_argument("--write-docs", action="store_true", help=f"write the figures into {RELIABILITY.name}")
    arguments = parser.parse_args()
    given = {each.name: value for each in fields(Scale) if (value := getattr(arguments, each.name)) is not None}
    scales = [Scale(**given)] if given else SCALES
    measured = [(scale, *measure(scale)) for scale in scales]
    text = "\n".join(as_markdown(*each) for each in measured)
    print(text)
    if arguments.write_docs:
        write_block(RELIABILITY, "million", text)
    slowest_ms = max(times.high for _, scripts, _ in measured for times in scripts.values())
    explained_ms = max(reports["explain"].median for _, _, reports in measured)
    sys.exit(0 if slowest_ms <= GOAL_SCRIPT_MS and explained_ms <= GOAL_EXPLAIN_MS else 1)


def measure(scale):
    """Return the times of scripts, and of reports, by name."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        with suppress(PermissionError):  # other processes are not measured; nice values only count within a session
            os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))
        fleet = LargeFleet(client, scale.types, keys=scale.keys)
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
        fleet.note_times()  # now: a server that has much to forget stands still for that
        fleet.crowd(scale.workers)
        fleet.live(scale.rounds)
        return fleet.script_times(), fleet.report_times()


def as_markdown(scale, scripts, reports):
    """Return a table: a share of one in a thousand is left out of `99.9 %`, since other processes run here as well."""
    rows = [("", "calls", "median", "99.9 %", "longest"), ("---", *("---:",) * 4)]
    for name, times in (*scripts.items(), *reports.items()):
        what = f"`{name}`" if name in scripts else f"report: {name}"
        rows.append((what, f"{times.calls:,}", *(_shown(value) for value in times[1:])))
    return "\n".join([f"{scale}, in ms:", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _shown(ms):
    return f"< {NOTED_FROM_US / 1000}" if ms <= NOTED_FROM_US / 1000 else f"{ms:.1f}"


if __name__ == "__main__":
    main()
