"""Compare preemption with no preemption: a nightly batch, and a customer with a minimum of one slot, on two slots.

    python -m examples.preemption [--docs FOLDER] [--number 150] [--calls 6] [--sides waits preempts]

The batch has four jobs, which read real documents. One job never calls `preempted()`, so it is stopped by force. The
customer opens an invoice every six seconds. The exit code is 1 if a document was not read, or if a call was lost.
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

#: Jobs of the batch -> True if the job calls `preempted()`.
BATCH = {"archive-2021": True, "archive-2022": True, "archive-2023": False, "archive-2024": True}

SLOTS = 2

#: Seconds between two calls of the customer.
EVERY_S = 6.0

#: The example gives up if a side takes more seconds than this.
MAX_S = 600.0

COLUMNS = ("median wait", "longest", "read", "read again", "not read", "took")


@dataclass
class Run:
    """The results of one side."""

    side: str
    #: Number of the customer's calls.
    calls: int
    #: Number of documents per job of the batch.
    number: int
    #: How long the customer's calls waited, in seconds.
    waits: list[float]
    #: (job, document) -> how many times the job read it.
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
        waits = [seconds(percentile(self.waits, percent)) for percent in (50, 100)] if self.waits else ["-"] * 2
        return self.side, *waits, *map(str, (len(self.reads), self.repeated, self.missing)), f"{self.took_s:.0f}"


def main() -> int:
    parser = sides.options_of("preemption", __doc__, SIDES)
    parser.add_argument("--number", type=int, default=150, help="documents per job of the batch")
    parser.add_argument("--calls", type=int, default=6, help="number of the customer's calls")
    options = parser.parse_args()
    title = f"The customer's waits, s, and {len(BATCH)} jobs of {options.number} documents"
    return sides.compare(options, lambda *arguments: _run(*arguments, options), title, COLUMNS)


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    console.print(f"{SIDES[side]} ...")
    started_s = time.monotonic()
    with sides.processes_of(side, url, options) as (processes, ledger):
        command = f"celery -A examples.preemption.app worker -Q documents -c {SLOTS} -l INFO --without-mingle"
        processes.python("worker", *command.split())
        processes.python("client", "examples.preemption.publish", str(options.number), str(options.calls))
        if not watch(processes, lambda: None, BOOT_S, lambda: bool(ledger.notes("read"))):
            raise DemoError(f"Nothing was read within {BOOT_S:.0f} s; the logs are in {ledger.folder}")
        watch(processes, lambda: None, MAX_S, lambda: _is_done(ledger, options.calls))
    called_at = {note["number"]: note["at"] for note in ledger.notes("called")}
    waits = sorted(note["at"] - called_at[note["number"]] for note in ledger.notes("opened"))
    reads = Counter((note["who"], note["number"]) for note in ledger.notes("read"))
    return Run(side, options.calls, options.number, waits, reads, time.monotonic() - started_s)


def _is_done(ledger: Ledger, calls: int) -> bool:
    ended = {note["who"] for note in ledger.notes("ended")}
    return ended == BATCH.keys() and len(ledger.notes("opened")) >= calls


if __name__ == "__main__":
    sys.exit(main())
