"""Questions about four collections of documents, on two workers that have memory for the index of one: with and without
hints of locality.

    python -m examples.locality [--docs FOLDER] [--calls 24] [--sides plain hints]

All questions are asked at once. The program ends with 1 if one was not answered, or answered twice.
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

#: Longest time, s, of all questions of one side.
PATIENCE_S = 300.0

COLUMNS = ("built", "at hand", "half wait up to", "nine of ten", "longest")


@dataclass
class Run:
    """What happened on one *side*. *waits*: from each question to its answer, s. *built*: number of indexes."""

    side: str
    built: int
    waits: list[float]
    is_complete: bool

    @property
    def row(self) -> tuple[str, ...]:
        waits = [seconds(percentile(self.waits, each)) for each in (50, 90, 100)] if self.waits else ["-"] * 3
        return SIDES[self.side], str(self.built), str(len(self.waits) - self.built), *waits


def main() -> int:
    parser = sides.options_of("locality", __doc__, SIDES)
    parser.add_argument("--calls", type=int, default=24, help="number of questions")
    options = parser.parse_args()
    title = f"{options.calls} questions on {WORKERS} workers: indexes, and waits for answers, s"
    return sides.compare(options, lambda *of: _run(*of, options), title, COLUMNS)


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    console.print(f"{SIDES[side]} ...")
    with sides.processes_of(side, url, options) as (processes, ledger):
        for number in range(WORKERS):
            words = f"celery -A examples.locality.app worker -Q questions -P solo -l INFO -n asked{number}@%h"
            processes.python(f"worker{number}", *words.split(), "--without-mingle")
        if not watch(processes, lambda: None, BOOT_S, lambda: len(ledger.notes("ready")) == WORKERS):
            raise DemoError(f"The workers were not ready within {BOOT_S:.0f} s; the logs are in {ledger.folder}")
        processes.python("client", "examples.locality.publish", str(options.calls))
        watch(processes, lambda: None, PATIENCE_S, lambda: len(ledger.notes("answered")) >= options.calls)
    answered = ledger.notes("answered")
    asked_at = min((each["at"] for each in ledger.notes("published")), default=0.0)
    waits = sorted(each["at"] - asked_at for each in answered)
    is_complete = sorted(each["number"] for each in answered) == list(range(options.calls))
    return Run(side, len(ledger.notes("built")), waits, is_complete)


if __name__ == "__main__":
    sys.exit(main())
