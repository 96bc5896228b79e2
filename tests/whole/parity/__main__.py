"""``python -m tests.whole.parity [TESTS ...]``: run both sides and print the differences.

The exit code is 1 if a test passes on stock Celery and fails on this transport.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import suite
from .sides import TRANSPORTS, Outcome, run

#: Test -> known reason of a failure on this transport; the test still counts as a failure.
KNOWN: dict[str, str] = {}

_FINE = ("passed", "skipped", "xfailed", "xpassed")


def main() -> int:
    options = _options()
    tests = suite.fetched(options.output)
    print(f"parity: both sides run, their logs are in {options.output} ...", flush=True)
    with ThreadPoolExecutor(len(TRANSPORTS)) as threads:  # tests mostly wait
        runs = {
            side: threads.submit(
                run, side, tests, options.output, options.tests, on_cluster=options.cluster and side == "ours"
            )
            for side in TRANSPORTS
        }
        sides = {side: each.result() for side, each in runs.items()}
    for side, outcomes in sides.items():
        print(f"  {side}: {_counted(outcomes)}")
    stock, ours = sides["stock"], sides["ours"]
    if not stock:
        print("parity: no test ran")
        return 2
    different = [test for test in stock if _kind(ours.get(test)) != _kind(stock[test])]
    print("\n| test | stock | ours | |\n|---|---|---|---|")
    for test in different:
        print(f"| {test} | {_shown(stock[test])} | {_shown(ours.get(test))} | {KNOWN.get(test, '')} |")
    worse = [test for test in different if _kind(stock[test]) == "fine"]
    print(f"\nparity: {len(stock)} tests, {len(different)} of them different, {len(worse)} of these worse here")
    return int(bool(worse))


def _kind(outcome: Outcome | None) -> str:
    return "fine" if outcome is not None and outcome.outcome in _FINE else "not fine"


def _shown(outcome: Outcome | None) -> str:
    if outcome is None:
        return "did not run"
    return outcome.outcome + (f" at try {outcome.reruns + 1}" if outcome.reruns else "")


def _counted(outcomes: dict[str, Outcome]) -> str:
    counts = Counter(each.outcome for each in outcomes.values())
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.parity", description="More options go to pytest.")
    parser.add_argument("--output", type=Path, default=Path("build/parity"))
    parser.add_argument("--cluster", action="store_true", help="ours has its jobs and results on a cluster")
    options, tests = parser.parse_known_args()
    options.output = options.output.resolve()
    options.tests = tests or ["t/integration"]
    return options


if __name__ == "__main__":
    sys.exit(main())
