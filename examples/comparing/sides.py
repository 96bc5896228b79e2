"""Runs the sides of an example one after the other, each with its own ledger, and prints a table of the results."""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console
from rich.table import Table

from examples.comparing import program
from examples.comparing.ledger import Ledger
from examples.comparing.processes import Processes
from examples.pipeline import OUTPUT


class Run(Protocol):
    """The results of one side."""

    @property
    def is_complete(self) -> bool:
        """True if no work was lost."""

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of its row in the table."""


AnyRun = TypeVar("AnyRun", bound=Run)


def options_of(example: str, doc: str | None, sides: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return a parser of the options that all these examples have. *sides*: name -> title."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{example}", description=(doc or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / example, help="folder for logs and ledgers")
    parser.add_argument("--sides", nargs="+", choices=tuple(sides), default=list(sides))
    return parser


def compare(
    options: argparse.Namespace, run: Callable[[Console, str, str], AnyRun], title: str, columns: Sequence[str]
) -> int:
    """Call *run* for each side with the console, the side's name and the server's URL. Return 1 if work was lost."""
    console = Console(highlight=False)

    def all_sides() -> int:
        with program.server() as url:
            runs = [run(console, side, url) for side in options.sides]
        table = Table(title=title)
        for name in ("side", *columns):
            table.add_column(name, justify="left" if name == "side" else "right")
        for side_run in runs:
            table.add_row(*side_run.row)
        console.print(table)
        return 0 if all(side_run.is_complete for side_run in runs) else 1

    return program.run(console, all_sides)


@contextmanager
def processes_of(side: str, url: str, options: argparse.Namespace) -> Iterator[tuple[Processes, Ledger]]:
    """Yield a starter of processes and an empty ledger for a side. On exit, stop the processes and delete the keys."""
    folder = options.out.resolve() / side
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.jsonl"), *folder.glob("*.checkpoint")):
        old.unlink()
    keyprefix = f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"EXAMPLE_SIDE": side, "EXAMPLE_FOLDER": str(folder), "EXAMPLE_KEYPREFIX": keyprefix, "REDIS_URL": url}
    env |= {"EXAMPLE_DOCS": str(options.docs.resolve())} if options.docs else {}
    try:
        with Processes(folder, env) as processes:
            yield processes, Ledger(folder)
    finally:
        program.delete_keys(url, keyprefix)
