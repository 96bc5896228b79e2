"""Measure the speed of the lab's engines: ``python -m benchmarks.lab [JOBS] [--judge]``.

The default is 100,000 jobs in the fast engine. ``--judge`` selects the exact engine.
"""

import argparse
import resource
import time

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.replay import jobs_beyond_bound, run_engine
from celery_affinity.lab.scenario import scenario_of
from examples.made_up_trace import make_unscheduled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="?", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.95, help="fraction of the slots that the jobs keep busy")
    parser.add_argument("--judge", action="store_true", help="measure the exact engine instead of the fast one")
    parser.add_argument("--check", action="store_true", help="also count claims beyond the overtaking bound")
    given = parser.parse_args()
    trace = make_unscheduled(given.jobs, load=given.load)
    scenario, length_s = scenario_of(trace), trace.length_us / SECOND_US
    began_s, cpu_s = time.perf_counter(), time.process_time()
    schedule, _ = run_engine(scenario, "judge" if given.judge else "twin")
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(f"{given.jobs:,} jobs in {took_s:.2f} s, CPU time of this process {cpu_s:.2f} s")
    print(f"{given.jobs / took_s:,.0f} jobs/s, {2 * given.jobs / took_s:,.0f} events/s (arrivals and ends)")
    print(f"{length_s / took_s:,.0f} times real time; peak {peak:,.0f} MiB, including the trace and the schedule")
    if given.check:
        print(f"{len(jobs_beyond_bound(schedule))} claims beyond the overtaking bound")


if __name__ == "__main__":
    main()
