"""A nightly batch and a customer with a minimum of one slot, on a fleet of two: with and without preemption.

    python -m examples.preemption [--docs FOLDER] [--number 150] [--calls 6] [--sides waits preempts]

Four jobs of the batch read real documents; one of them never asks whether it is to stop. Meanwhile the customer looks
at an invoice every six seconds. The program ends with 1 if a document of the batch was not read, or a call was lost.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass

from rich.console import Console

from examples.comparing import sides
from examples.comparing.figures import percentile, seconds
from examples.comparing.ledger import Ledger
from examples.comparing.program import BOOT_S, DemoError, watch
from examples.preemption.app import SIDES

#: The jobs of the batch -> whether each asks if it is to stop.
BATCH = {"archive-2021": True, "archive-2022": True, "archive-2023": False, "archive-2024": True}

SLOTS = 2

#: Time, s, between two calls of the customer, and of one side altogether before it is given up.
EVERY_S, PATIENCE_S = 6.0, 600.0

COLUMNS = ("half wait up to", "longest", "read", "read again", "not read", "took")


@dataclass
class Run:
    """What happened on one *side*. *waits*: of the customer's calls, s. *reads*: (job, document) -> times."""

    side: str
    calls: int
    number: int
    waits: list[float]
    reads: Counter[tuple[str, int]]
    took_s: float

    @property
    def missing(self) -> int:
        return len(BATCH) * self.number - len(self.reads)

    @property
    def repeated(self) -> int:
        return sum(self.reads.values()) - len(self.reads)

    @property
    def is_complete(self) -> bool:
        return not self.missing and len(self.waits) == self.calls

    @property
    def row(self) -> tuple[str, ...]:
        waits = [seconds(percentile(self.waits, each)) for each in (50, 100)] if self.waits else ["-"] * 2
        return self.side, *waits, *map(str, (len(self.reads), self.repeated, self.missing)), f"{self.took_s:.0f}"


def main() -> int:
    parser = sides.options_of("preemption", __doc__, SIDES)
    parser.add_argument("--number", type=int, default=150, help="documents that each job of the batch reads")
    parser.add_argument("--calls", type=int, default=6, help="calls of the customer")
    options = parser.parse_args()
    title = f"The customer's waits, s, and {len(BATCH)} jobs of {options.number} documents"
    return sides.compare(options, lambda *of: _run(*of, options), title, COLUMNS)


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    console.print(f"{SIDES[side]} ...")
    began_s = time.monotonic()
    with sides.processes_of(side, url, options) as (processes, ledger):
        words = f"celery -A examples.preemption.app worker -Q documents -c {SLOTS} -l INFO --without-mingle"
        processes.python("worker", *words.split())
        processes.python("client", "examples.preemption.publish", str(options.number), str(options.calls))
        if not watch(processes, lambda: None, BOOT_S, lambda: bool(ledger.notes("read"))):
            raise DemoError(f"Nothing was read within {BOOT_S:.0f} s; the logs are in {ledger.folder}")
        watch(processes, lambda: None, PATIENCE_S, lambda: _is_done(ledger, options.calls))
    called = {each["number"]: each["at"] for each in ledger.notes("called")}
    waits = sorted(each["at"] - called[each["number"]] for each in ledger.notes("looked"))
    reads = Counter((each["who"], each["number"]) for each in ledger.notes("read"))
    return Run(side, options.calls, options.number, waits, reads, time.monotonic() - began_s)


def _is_done(ledger: Ledger, calls: int) -> bool:
    ended = {each["who"] for each in ledger.notes("ended")}
    return ended == BATCH.keys() and len(ledger.notes("looked")) >= calls


if __name__ == "__main__":
    sys.exit(main())
