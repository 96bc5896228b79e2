"""``python -m tests.whole.chaos --seconds 1200 --seed 7``: faults while jobs run, and a report."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic

from ...support.pages import RESULTS, write_block
from . import on_cluster, on_cohorts, results
from .campaign import Campaign, Outcome
from .storms import STORMS, Storm, plan

_JOBS_A_SECOND = 210
_SHOWN = 12


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends all started processes
    print(f"chaos: SEED={options.seed} SECONDS={options.seconds}, in {options.output}", flush=True)
    if options.cluster or options.cohorts:
        report = (on_cluster if options.cluster else on_cohorts).blow(options.seconds, options.seed, options.output)
        print(report)
        return int(bool(report.violations or report.standstills))
    began = monotonic()
    outcomes: list[Outcome] = []
    storms = plan(Random(options.seed), options.only)
    for number, (replicated, share) in enumerate(_parts(options)):
        chosen = (storm for storm in storms if storm.replicated == replicated)
        until = monotonic() + share if number == 0 else began + options.seconds
        outcomes += _blow(options, chosen, until, replicated=replicated)
    result = results.summed_up(outcomes, options.seed, round(monotonic() - began))
    results.write(result, options.output)
    print(results.as_markdown(result))
    if options.write_docs:
        write_block(RESULTS / "chaos.md", results.BLOCK, results.as_markdown(result))
    return int(any(outcome.verdict.violations for outcome in outcomes))


def _blow(options: argparse.Namespace, storms, until: float, *, replicated: bool) -> list[Outcome]:
    """Run storms on one fleet until the time is up, but at least one storm."""
    outcomes: list[Outcome] = []
    directory = options.output / ("replicated" if replicated else "single")
    with Campaign(directory, options.seed, replicated=replicated).running() as campaign:
        while not outcomes or monotonic() + 2 * options.storm_seconds < until:
            storm: Storm = next(storms)
            outcome = campaign.storm(storm, options.storm_seconds, round(options.storm_seconds * options.rate))
            outcomes.append(outcome)
            print(results.in_a_line(outcome), flush=True)
            for violation in outcome.verdict.violations[:_SHOWN]:
                print(f"  VIOLATION: {violation}", flush=True)  # results.json has all violations
    return outcomes


def _parts(options: argparse.Namespace) -> list[tuple[bool, float]]:
    """Return (is replicated, seconds) for each fleet of a run; a short run has one fleet."""
    kinds = {storm.replicated for storm in STORMS if options.only in storm.name}
    if options.seconds < 200 and False in kinds:
        kinds = {False}
    if len(kinds) == 1:
        return [(kinds.pop(), options.seconds)]
    return [(False, options.seconds * 0.84), (True, options.seconds * 0.16)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.chaos", description=__doc__)
    parser.add_argument("--seed", default="", help="what chance begins with; by default another each time")
    parser.add_argument("--seconds", type=float, default=1200, help="how long it lasts, about")
    parser.add_argument("--storm-seconds", type=float, default=14, help="how long a storm blows")
    parser.add_argument("--rate", type=float, default=_JOBS_A_SECOND, help="jobs published a second")
    parser.add_argument("--only", default="", help="storms whose name holds this")
    parser.add_argument("--output", type=Path, help="where the ledger, the logs and the results go")
    parser.add_argument("--write-docs", action="store_true", help="write the results into benchmarks/results/chaos.md")
    parser.add_argument("--cluster", action="store_true", help="on six nodes, whose primaries are killed and replaced")
    parser.add_argument("--cohorts", action="store_true", help="on two servers, one of them that of a cohort")
    options = parser.parse_args()
    options.seed = options.seed or str(SystemRandom().randrange(10**6))
    options.output = options.output or Path(tempfile.mkdtemp(prefix="celery-affinity-chaos-"))
    return options


if __name__ == "__main__":
    sys.exit(main())
