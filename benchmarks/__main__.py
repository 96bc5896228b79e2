"""How fast this transport is, beside stock Celery and dramatiq.

python -m benchmarks                                      # all of it
python -m benchmarks --quick                              # the short of it
python -m benchmarks --only-goals                         # in full, but only what has a goal
python -m benchmarks drain --only "solo late" --rounds 5  # a part again, while tuning
python -m benchmarks drain --before ../elsewhere          # this project as it is there, in turn with this
python -m benchmarks loss --add build/bench/results.json  # a part again, in one table with the others
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
        run.write(arguments.output, results, report.outcomes(results))  # for a run that is stopped
    found = report.outcomes(results)
    shown = [each for each in found if each.value is not None] if arguments.parts or options.only else found
    print(report.as_text(report.goal_rows(shown)))
    if arguments.write_docs:
        write_block(RESULTS / "bench.md", "bench", run.as_markdown(found))
        write_block(PERFORMANCE, "bench", for_users.table(found))
    return int(arguments.goals and any(each.verdict != "ok" for each in found))


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer tasks, and only what has a goal")
    parser.add_argument("--only-goals", action="store_true", help="only what has a goal, but in full")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="words of the names of what is measured, as in 'solo late'; given again: those as well",
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--tasks", type=int, help="how many to drain, and to publish")
    parser.add_argument("--largest", type=int, help="how many jobs are pending at most, where that is measured")
    parser.add_argument("--before", type=Path, help="another checkout of this project, measured in turn with this one")
    parser.add_argument("--server", help="an executable other than Valkey's from the package index: redis-server")
    parser.add_argument(
        "--add", type=Path, metavar="RESULTS", help="results of another run: the parts that are not measured now"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="directory for the results; build/bench")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write the tables into benchmarks/results/bench.md and docs/explanation/performance.md",
    )
    parser.add_argument("--goals", action="store_true", help="end with 1 unless every goal is reached")
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
