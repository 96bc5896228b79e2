"""What the commands of the lab share: the trace, the engine, a bar that shows progress, and errors in a line."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click

from ...errors import AffinityError
from ...lab.engines import ENGINES
from ...lab.trace import Trace
from ...lab.trace_file import read
from ...rules.numbers import MOST_COUNT

TRACE = click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))

ENGINE = click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="twin: fast, for most rules; judge: the library on a server of its own, for all; auto: the twin if it can.",
)

#: The beginning of a series of random numbers.
SEED = click.IntRange(0, MOST_COUNT)

#: A bar is drawn again after so many steps.
_STEPS = 1_000


def trace_in(path: Path) -> Trace:
    """Return the trace in a file. Raises AffinityError for a file that has none, or one without jobs."""
    if not path.exists():
        raise AffinityError(
            f"TRACE must be a file that `celery affinity lab record` wrote, but there is no {str(path)!r}"
        )
    found = read(path)
    if not found.jobs:
        raise AffinityError(f"{path} has no jobs: a fleet without work was recorded")
    return found


def progress(count: int, label: str, *, update_every: int = _STEPS) -> AbstractContextManager[Iterable[object]]:
    """Return a bar of *count* steps on stderr, which only a terminal shows."""
    return click.progressbar(
        range(count), label=label, file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=update_every
    )


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """End the command with a line that says what is wrong."""
    try:
        yield
    except (AffinityError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
