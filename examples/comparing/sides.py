"""An example whose sides run one after the other, each with a ledger: its options, its processes and its table."""

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
    """What happened on one side."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost."""

    @property
    def row(self) -> tuple[str, ...]:
        """Its row of the table."""


AnyRun = TypeVar("AnyRun", bound=Run)


def options_of(example: str, doc: str | None, sides: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return a parser of the options that each such example has. *sides* -> what each is called."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{example}", description=(doc or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / example, help="where logs and ledgers go")
    parser.add_argument("--sides", nargs="+", choices=tuple(sides), default=list(sides))
    return parser


def compare(
    options: argparse.Namespace, run: Callable[[Console, str, str], AnyRun], title: str, columns: Sequence[str]
) -> int:
    """Run each side, called with the console, its name and the server's URL. Return 1 if one is not complete."""
    console = Console(highlight=False)

    def all_sides() -> int:
        with program.server() as url:
            runs = [run(console, side, url) for side in options.sides]
        table = Table(title=title)
        for name in ("side", *columns):
            table.add_column(name, justify="left" if name == "side" else "right")
        for each in runs:
            table.add_row(*each.row)
        console.print(table)
        return 0 if all(each.is_complete for each in runs) else 1

    return program.run(console, all_sides)


@contextmanager
def processes_of(side: str, url: str, options: argparse.Namespace) -> Iterator[tuple[Processes, Ledger]]:
    """Yield what starts the processes of a side, and its empty ledger. No process and no key is left behind."""
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
        program.forget(url, keyprefix)
