"""Compare locality hints with no hints: two workers answer questions about four collections of documents.

    python -m examples.locality [--docs FOLDER] [--calls 24] [--sides plain hints]

A worker keeps the index of one collection in memory. All questions are published together. The exit code is 1 if a
question was not answered, or was answered twice.
"""

import argparse
import sys
from dataclasses import dataclass

from rich.console import Console

from examples.comparing import sides
from examples.comparing.figures import percentile, seconds
from examples.comparing.program import BOOT_S, DemoError, watch
from examples.locality.app import SIDES

WORKERS = 2

#: Maximum number of seconds for all questions of one side.
MAX_S = 300.0

COLUMNS = ("indexes built", "in memory", "median wait", "90th percentile", "longest")


@dataclass
class Run:
    """The results of one side."""

    side: str
    #: Number of indexes that were built.
    built: int
    #: Seconds from the publish to each answer.
    waits: list[float]
    is_complete: bool

    @property
    def row(self) -> tuple[str, ...]:
        waits = [seconds(percentile(self.waits, percent)) for percent in (50, 90, 100)] if self.waits else ["-"] * 3
        return SIDES[self.side], str(self.built), str(len(self.waits) - self.built), *waits


def main() -> int:
    parser = sides.options_of("locality", __doc__, SIDES)
    parser.add_argument("--calls", type=int, default=24, help="number of questions")
    options = parser.parse_args()
    title = f"{options.calls} questions on {WORKERS} workers: indexes, and waits for answers, s"
    return sides.compare(options, lambda *arguments: _run(*arguments, options), title, COLUMNS)


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    console.print(f"{SIDES[side]} ...")
    with sides.processes_of(side, url, options) as (processes, ledger):
        for number in range(WORKERS):
            command = f"celery -A examples.locality.app worker -Q questions -P solo -l INFO -n reader{number}@%h"
            processes.python(f"worker{number}", *command.split(), "--without-mingle")
        if not watch(processes, lambda: None, BOOT_S, lambda: len(ledger.notes("ready")) == WORKERS):
            raise DemoError(f"The workers were not ready within {BOOT_S:.0f} s; the logs are in {ledger.folder}")
        processes.python("client", "examples.locality.publish", str(options.calls))
        watch(processes, lambda: None, MAX_S, lambda: len(ledger.notes("answered")) >= options.calls)
    answered = ledger.notes("answered")
    published_at = min((note["at"] for note in ledger.notes("published")), default=0.0)
    waits = sorted(note["at"] - published_at for note in answered)
    is_complete = sorted(note["number"] for note in answered) == list(range(options.calls))
    return Run(side, len(ledger.notes("built")), waits, is_complete)


if __name__ == "__main__":
    sys.exit(main())
