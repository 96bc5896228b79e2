"""Compare the speed of this transport with stock Celery and dramatiq.

python -m benchmarks                                      # all benchmarks
python -m benchmarks --quick                              # fewer rounds and tasks, only subjects with a goal
python -m benchmarks --only-goals                         # all rounds, only subjects with a goal
python -m benchmarks drain --only "solo late" --rounds 5  # one part, some of its subjects
python -m benchmarks drain --before ../elsewhere          # this checkout and another one, in turn
python -m benchmarks loss --add build/bench/results.json  # one part, other parts from an earlier run
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.pages import RESULTS, write_block

from . import for_users, report
from .options import FULL, QUICK, Options
from .parts import PARTS
from .results import Results
from .run import Run, parts_of
from .systems import ROOT

OUTPUT = ROOT / "build" / "bench"
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parse(words)
    options = _options(arguments)
    run, results = Run.now(options), parts_of(arguments.add) if arguments.add else Results()
    for name in arguments.parts or options.parts:
        print(f"{name}:", file=sys.stderr, flush=True)
        measured = PARTS[name](options)
        for part in measured:
            print(f"{part}\n{report.as_text(report.part_rows(measured[part]))}\n", flush=True)
        results |= measured
        run.write(arguments.output, results, report.outcomes(results))  # so that an interrupted run has results, too
    outcomes = report.outcomes(results)
    is_partial = bool(arguments.parts or options.only)
    shown = [outcome for outcome in outcomes if outcome.value is not None] if is_partial else outcomes
    print(report.as_text(report.goal_rows(shown)))
    if arguments.write_docs:
        write_block(RESULTS / "bench.md", "bench", run.as_markdown(outcomes))
        write_block(PERFORMANCE, "bench", for_users.table(outcomes))
    return int(arguments.goals and any(outcome.verdict != "ok" for outcome in outcomes))


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"parts to measure, of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tasks, and only subjects with a goal")
    parser.add_argument(
        "--only-goals", action="store_true", help="only subjects with a goal, with all rounds and tasks"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="only subjects whose names contain all these words, such as 'solo late'; can be repeated",
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--tasks", type=int, help="number of tasks to drain, and to publish")
    parser.add_argument("--largest", type=int, help="maximum number of pending jobs in the parts that vary it")
    parser.add_argument(
        "--before", type=Path, help="another checkout of this project, to measure in turn with this one"
    )
    parser.add_argument(
        "--server", help="executable of the server, such as redis-server (default: Valkey from the package index)"
    )
    parser.add_argument(
        "--add",
        type=Path,
        metavar="RESULTS",
        help="results file of another run, for the parts that this run does not measure",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="directory for the results (default: build/bench)")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write the tables into benchmarks/results/bench.md and docs/explanation/performance.md",
    )
    parser.add_argument("--goals", action="store_true", help="exit with 1 unless every goal is reached")
    arguments = parser.parse_args(words)
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"no part {part!r}: choose from {', '.join(PARTS)}")
    return arguments


def _options(arguments: argparse.Namespace) -> Options:
    given = {
        "rounds": arguments.rounds,
        "drain_tasks": arguments.tasks,
        "publish_tasks": arguments.tasks,
        "largest": arguments.largest,
        "before": arguments.before and arguments.before.resolve(),
        "server": arguments.server,
        "only": tuple(frozenset(words.split()) for words in arguments.only),
    }
    if arguments.only_goals:
        given["every_variant"] = False
    options = QUICK if arguments.quick else FULL
    return replace(options, **{name: value for name, value in given.items() if value not in (None, ())})


if __name__ == "__main__":
    sys.exit(main())
