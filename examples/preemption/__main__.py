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
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.comparing import program
from examples.comparing.figures import percentile, seconds
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, forget, watch
from examples.pipeline import OUTPUT
from examples.preemption.ledger import Ledger

#: The jobs of the batch -> whether each asks if it is to stop.
BATCH = {"archive-2021": True, "archive-2022": True, "archive-2023": False, "archive-2024": True}

SLOTS = 2

#: Time, s, between two calls of the customer, and of one side altogether before it is given up.
EVERY_S, PATIENCE_S = 6.0, 600.0


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.preemption", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / "preemption", help="where logs and ledgers go")
    parser.add_argument("--number", type=int, default=150, help="documents that each job of the batch reads")
    parser.add_argument("--calls", type=int, default=6, help="calls of the customer")
    parser.add_argument("--sides", nargs="+", choices=("waits", "preempts"), default=["waits", "preempts"])
    options = parser.parse_args()
    console = Console(highlight=False)
    return program.run(console, lambda: _demo(console, options))


def _demo(console: Console, options: argparse.Namespace) -> int:
    with program.server() as url:
        runs = [_run(console, side, url, options) for side in options.sides]
    table = Table(title=f"The customer's waits, s, and {len(BATCH)} jobs of {options.number} documents")
    for name in ("side", "half wait up to", "longest", "read", "read again", "not read", "took"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for run in runs:
        said = (seconds(percentile(run.waits, each)) for each in (50, 100)) if run.waits else ("-", "-")
        table.add_row(run.side, *said, *map(str, (len(run.reads), run.repeated, run.missing)), f"{run.took_s:.0f}")
    console.print(table)
    return 0 if all(run.is_complete for run in runs) else 1


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    folder = options.out.resolve() / side
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.jsonl"), *folder.glob("*.checkpoint")):
        old.unlink()
    ledger, keyprefix = Ledger(folder), f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"PREEMPTION_SIDE": side, "PREEMPTION_FOLDER": str(folder), "PREEMPTION_KEYPREFIX": keyprefix}
    env |= {"REDIS_URL": url} | ({"PREEMPTION_DOCS": str(options.docs.resolve())} if options.docs else {})
    console.print(f"{side} ...")
    began_s = time.monotonic()
    try:
        with Processes(folder, env) as processes:
            words = f"celery -A examples.preemption.app worker -Q documents -c {SLOTS} -l INFO --without-mingle"
            processes.python("worker", *words.split())
            publish = ("examples.preemption.publish", str(options.number), str(options.calls))
            processes.python("client", *publish)
            if not watch(processes, lambda: None, BOOT_S, lambda: bool(ledger.notes("read"))):
                raise DemoError(f"Nothing was read within {BOOT_S:.0f} s; the logs are in {folder}")
            watch(processes, lambda: None, PATIENCE_S, lambda: _is_done(ledger, options.calls))
    finally:
        forget(url, keyprefix)
    called = {each["number"]: each["at"] for each in ledger.notes("called")}
    waits = sorted(each["at"] - called[each["number"]] for each in ledger.notes("looked"))
    reads = Counter((each["who"], each["number"]) for each in ledger.notes("read"))
    return Run(side, options.calls, options.number, waits, reads, time.monotonic() - began_s)


def _is_done(ledger: Ledger, calls: int) -> bool:
    ended = {each["who"] for each in ledger.notes("ended")}
    return ended == BATCH.keys() and len(ledger.notes("looked")) >= calls


if __name__ == "__main__":
    sys.exit(main())
