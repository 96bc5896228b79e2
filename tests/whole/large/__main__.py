"""The cost of each script and report with a large queue. ``make million`` runs it with 1,000,000 pending jobs.

    python -m tests.whole.large                                    # all SCALES
    python -m tests.whole.large --jobs 1000000 --types 20          # a custom scale
    python -m tests.whole.large --merging 1000000                  # only merged calls, compared with plain jobs
    python -m tests.whole.large --odd                              # the longest calls and reports of ODD_SIZES

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
from .fleet import BATCH, HINTS_OF_ONE, NOTED_FROM_US, LargeFleet, best_script_times

#: Maximum duration in ms of 99.9 % of a script's calls.
GOAL_SCRIPT_MS = 5

#: Number of merge keys, and number of calls with one key.
MERGE_KEYS, CALLS_OF_ONE_KEY = 1_000_000, 10_000

#: Names of the rows for cancelling all jobs of the only key, and for a script that does nothing.
CANCEL = "`cancel --key` of all jobs"
NOTHING = "a script that does nothing"

#: Time in µs until jobs with one ETA are due, and for each of them: they are published before.
DUE_IN_US, DUE_PER_JOB_US = 3_000_000, 250

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
    #: Number of types that the largest workers serve.
    served: int = 20
    #: Number of further jobs with one ETA.
    due: int = 0
    #: 1 to cancel all jobs of a key before the purge.
    cancel: int = 0

    def __str__(self):
        workers = f", {self.workers:,} more workers that join and heartbeat" if self.workers else ""
        keys = f", {self.keys:,} exclusive key{'s' if self.keys > 1 else ''}" if self.keys else ""
        limit = f" with a limit of {self.limit:,} each" if self.limit else ""
        quota = f"a minimum of {self.minimum} each" if self.minimum else "shares"
        tenants = f", {self.tenants:,} tenants with {quota}" if self.tenants else ""
        hints = f", {self.hints:,} hints, of which each of these workers holds {HINTS_OF_ONE}" if self.hints else ""
        served = f", workers with {self.served:,} of them" if self.served != Scale.served else ""
        due = f", {self.due:,} more jobs due in one second" if self.due else ""
        return f"{self.jobs:,} jobs of {self.types:,} types{served}{limit}{keys}{tenants}{workers}{hints}{due}"


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

#: Odd sizes, each with the goal in ms for the longest call of these functions, or of all functions for (). Each call
#: counts with the best of `BEST_OF` runs on the same data.
ODD_SIZES = {
    Scale(jobs=10_000, rounds=20, due=100_000): (10, ()),
    Scale(jobs=100_000, rounds=20, types=2_000, served=1_000): (10, ()),
    Scale(jobs=200_000, rounds=20, keys=200_000): (10, ()),
    Scale(jobs=300_000, rounds=20, types=1, keys=1, cancel=1): (10, ()),
    Scale(jobs=100_000, rounds=60, workers=5_000, hints=200): (5, ("join", "purge", "requeue", "release")),
}
BEST_OF = 5

#: Maximum CPU time in ms of a report in its process, in the fleets with the first goal.
GOAL_REPORT_CPU_MS = 100

#: Number of functions and reports in the summary of an odd size.
SHOWN = 5


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.whole.large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for each in fields(Scale):
        parser.add_argument(f"--{each.name}", type=int, default=None, help=f"{each.default:,} by default")
    parser.add_argument("--best-of", type=int, metavar="N", help=f"repeat all calls; with --odd {BEST_OF} times")
    parser.add_argument("--odd", action="store_true", help="measure only the odd sizes, and print their longest calls")
    parser.add_argument("--merging", type=int, help=f"number of merge keys; by default {MERGE_KEYS:,} without a scale")
    parser.add_argument("--calls", type=int, default=CALLS_OF_ONE_KEY, help="calls with one key; 10,000 by default")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the results into benchmarks/results/million.md"
    )
    arguments = parser.parse_args()
    if arguments.odd:
        sys.exit(measure_odd_sizes(arguments.best_of or BEST_OF, arguments.write_docs))
    given = {each.name: value for each in fields(Scale) if (value := getattr(arguments, each.name)) is not None}
    keys = arguments.merging or (0 if given else MERGE_KEYS)
    scales = [Scale(**given)] if given else () if arguments.merging else SCALES
    measured = [(scale, *measure(scale, arguments.best_of or 1)) for scale in scales]
    merged = measure_merging(keys, arguments.calls) if keys else []
    text = "\n".join([*(as_markdown(*each) for each in measured), *([merging.as_markdown(merged)] if merged else [])])
    print(text)
    if arguments.write_docs:
        write_block(RESULTS / "million.md", "million", text)
    slowest_ms = max((times.high for _, scripts, *_ in measured for times in scripts.values()), default=0)
    explained_ms = max((reports["explain"].median for _, _, reports, _ in measured), default=0)
    is_good = slowest_ms <= GOAL_SCRIPT_MS and explained_ms <= GOAL_EXPLAIN_MS
    sys.exit(0 if is_good and all(each.is_reached for each in merged) else 1)


def prioritize(server):
    """Give the server a higher priority than other processes have."""
    with suppress(PermissionError):  # nice values apply only within a session
        os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def prioritized_server():
    with EmbeddedServer() as server:
        prioritize(server)
        yield server


def measure_merging(keys, calls):
    """Return the figures of merged calls compared with plain jobs, in separate databases."""
    with prioritized_server() as server:
        base = server.url.rpartition("/")[0]
        with redis.Redis.from_url(f"{base}/0") as plain, redis.Redis.from_url(f"{base}/1") as merged:
            found = merging.one_key((plain, merged), calls)
            return merging.many_keys((plain, merged), keys) + found


def measure(scale, best_of=1):
    """Return the times by name of scripts and of reports, and the times of a script that does nothing.

    The calls are made *best_of* times on the same data, and the shortest time of each call counts.
    """
    with prioritized_server() as server, redis.Redis.from_url(server.url) as client:
        tenants = {"tenants": scale.tenants, "minimum": scale.minimum}
        fleet = LargeFleet(client, scale.types, keys=scale.keys, hints=scale.hints, served=scale.served, **tenants)
        began_s = time.monotonic()
        last = min(BATCH, scale.jobs)
        client.config_set("slowlog-log-slower-than", -1)
        fleet.fill(scale.jobs - last)
        print(f"{scale.jobs:,} jobs published in {time.monotonic() - began_s:.0f} s", flush=True)
        if best_of > 1:
            client.save()
        runs = []
        for number in range(best_of):
            if number:
                server.kill()
                server.start()
                prioritize(server)
            fleet.forget_times()
            runs.append(_measure_once(fleet, scale, last))
        noted, reports, nothing = zip(*runs, strict=True)
        return best_script_times(noted), _best(reports), _best(nothing)


def measure_odd_sizes(best_of, write_docs):
    """Print the longest calls and the CPU times of reports with odd sizes. Return 1 if a goal is missed, or 0."""
    rows, is_missed = [], False
    for scale, (goal_ms, names) in ODD_SIZES.items():
        scripts, reports, _ = measure(scale, best_of)
        chosen = {name: times.longest for name, times in scripts.items() if name in (names or scripts)}
        used = {name.removesuffix(", CPU"): times.median for name, times in reports.items() if name.endswith(", CPU")}
        is_missed |= max(chosen.values()) > goal_ms or (not names and max(used.values()) > GOAL_REPORT_CPU_MS)
        rows.append((str(scale), f"{goal_ms} ms", _longest(chosen, "`{}` {:.1f}"), _longest(used, "{} {:.0f}")))
        if CANCEL in reports:
            rows[-1] = (*rows[-1][:3], f"{rows[-1][3]}; {CANCEL}: {reports[CANCEL].longest / 1000:.1f} s")
        print(" | ".join(rows[-1]), flush=True)
    header = ("fleet", "goal", "longest calls, ms", f"CPU time of reports, ms (goal {GOAL_REPORT_CPU_MS})")
    text = "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---", "---:", "---", "---"), *rows))
    print(text)
    if write_docs:
        write_block(RESULTS / "million.md", "million ARGS=--odd", text + "\n")
    return int(is_missed)


def _longest(times_ms, form):
    longest = sorted(times_ms.items(), key=lambda item: -item[1])[:SHOWN]
    return ", ".join(form.format(*item) for item in longest)


def _measure_once(fleet, scale, last):
    fleet.limit_types(scale.limit)
    fleet.fill(scale.jobs, since=scale.jobs - last)
    fleet.scheduler.calls["publish"] += last
    fleet.note_times()  # a long slow log would take the server long to reset
    if scale.due:
        due_us = fleet.reader.now_us() + DUE_IN_US + DUE_PER_JOB_US * scale.due
        fleet.fill(scale.jobs + scale.due, since=scale.jobs, due_us=due_us)
        fleet.note_times()
    fleet.crowd(scale.workers)
    fleet.run_rounds(scale.rounds)
    reports = fleet.report_times()
    if scale.due:
        fleet.run_due(due_us)
    if scale.cancel:
        reports[CANCEL] = fleet.cancel()
    fleet.purge()
    return fleet.noted(), reports, {NOTHING: fleet.nothing_times()}


def _best(results):
    """Return the times of each name whose longest call is the shortest."""
    names = dict.fromkeys(name for times in results for name in times)
    return {
        name: min((times[name] for times in results if name in times), key=lambda each: each.longest) for name in names
    }


def as_markdown(scale, scripts, reports, nothing):
    """Return a table; *nothing* has the times of a script that does nothing, which the machine causes.

    The column `99.9 %` omits one call in a thousand, since other processes run on the machine.
    """
    rows = [("", "calls", "median", "99.9 %", "longest"), ("---", *("---:",) * 4)]
    found = {f"`{name}`": times for name, times in scripts.items()}
    found |= {f"report: {name}": times for name, times in reports.items()}
    for what, times in {**found, **nothing}.items():
        rows.append((what, f"{times.calls:,}", *(_shown(value) for value in times[1:])))
    return "\n".join([f"{scale}, in ms:", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _shown(ms):
    return f"< {NOTED_FROM_US / 1000}" if ms <= NOTED_FROM_US / 1000 else f"{ms:.1f}"


if __name__ == "__main__":
    main()
