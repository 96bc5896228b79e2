"""Questions about four collections of documents, on two workers that have memory for the index of one: with and without
hints of locality.

    python -m examples.locality [--docs FOLDER] [--calls 24] [--sides plain hints]

All questions are asked at once. The program ends with 1 if one was not answered, or answered twice.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.comparing import program
from examples.comparing.figures import percentile, seconds
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, forget, watch
from examples.locality.app import SIDES
from examples.pipeline import OUTPUT
from examples.preemption.ledger import Ledger

WORKERS = 2

#: Longest time, s, of all questions of one side.
PATIENCE_S = 300.0


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
    parser = argparse.ArgumentParser(prog="python -m examples.locality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / "locality", help="where logs and ledgers go")
    parser.add_argument("--calls", type=int, default=24, help="number of questions")
    parser.add_argument("--sides", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    options = parser.parse_args()
    console = Console(highlight=False)
    return program.run(console, lambda: _demo(console, options))


def _demo(console: Console, options: argparse.Namespace) -> int:
    with program.server() as url:
        runs = [_run(console, side, url, options) for side in options.sides]
    table = Table(title=f"{options.calls} questions on {WORKERS} workers: indexes, and waits for answers, s")
    for name in ("side", "built", "at hand", "half wait up to", "nine of ten", "longest"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for run in runs:
        table.add_row(*run.row)
    console.print(table)
    return 0 if all(run.is_complete for run in runs) else 1


def _run(console: Console, side: str, url: str, options: argparse.Namespace) -> Run:
    folder = options.out.resolve() / side
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    ledger, keyprefix = Ledger(folder), f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"LOCALITY_SIDE": side, "LOCALITY_FOLDER": str(folder), "LOCALITY_KEYPREFIX": keyprefix, "REDIS_URL": url}
    env |= {"LOCALITY_DOCS": str(options.docs.resolve())} if options.docs else {}
    console.print(f"{SIDES[side]} ...")
    try:
        with Processes(folder, env) as processes:
            for number in range(WORKERS):
                words = f"celery -A examples.locality.app worker -Q questions -P solo -l INFO -n asked{number}@%h"
                processes.python(f"worker{number}", *words.split(), "--without-mingle")
            if not watch(processes, lambda: None, BOOT_S, lambda: len(ledger.notes("ready")) == WORKERS):
                raise DemoError(f"The workers were not ready within {BOOT_S:.0f} s; the logs are in {folder}")
            processes.python("client", "examples.locality.publish", str(options.calls))
            watch(processes, lambda: None, PATIENCE_S, lambda: len(ledger.notes("answered")) >= options.calls)
    finally:
        forget(url, keyprefix)
    answered = ledger.notes("answered")
    asked_at = min((each["at"] for each in ledger.notes("published")), default=0.0)
    waits = sorted(each["at"] - asked_at for each in answered)
    is_complete = sorted(each["number"] for each in answered) == list(range(options.calls))
    return Run(side, len(ledger.notes("built")), waits, is_complete)


if __name__ == "__main__":
    sys.exit(main())
