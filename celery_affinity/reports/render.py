"""Tables, paragraphs, times and numbers as text for people, for the outputs of all reports."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import click
from wcwidth import wcswidth

from ..scheduler.cohorts import CohortRow

R = TypeVar("R", bound=CohortRow)

#: A cell of a table: the attribute of the row, or a function of the row.
Cell = str | Callable[[R], object]


@dataclass(frozen=True)
class Table(Generic[R]):
    """The columns of a table, and its text without rows. Fleets with several cohorts get a column for the cohort."""

    #: Header -> cells. None is shown as "-".
    columns: Mapping[str, Cell[R]]
    empty: str = ""
    #: Returns True for a row in red.
    is_red: Callable[[R], bool] | None = None
    #: Header -> condition. The table has the column only if a row meets it.
    optional: Mapping[str, Callable[[R], bool]] = field(default_factory=dict)
    #: True for a first column with the numbers of the rows.
    is_numbered: bool = False

    def text(self, rows: Sequence[R]) -> str:
        if not rows and self.empty:
            return self.empty
        missing = {header for header, is_needed in self.optional.items() if not any(map(is_needed, rows))}
        columns = {header: cell for header, cell in self.columns.items() if header not in missing}
        first = [["", *map(str, range(1, len(rows) + 1))]] if self.is_numbered else []
        if any(row.cohort for row in rows):
            first.insert(0, ["cohort", *(row.cohort or "" for row in rows)])
        others = [[header, *(_cell_text(row, cell) for row in rows)] for header, cell in columns.items()]
        header, *cells = zip(*first, *others, strict=True)
        return format_table(header, cells, [] if self.is_red is None else [*map(self.is_red, rows)])


def _cell_text(row: R, cell: Cell[R]) -> str:
    value = getattr(row, cell) if isinstance(cell, str) else cell(row)
    return "-" if value is None else str(value)


def mode_text(on_demand: bool) -> str:
    """Return the mode of a job as text."""
    return "on demand" if on_demand else "queued"


def pluralize(number: int, thing: str, things: str = "") -> str:
    """Return a number with a noun, such as "1 slot" or "2 slots"."""
    return f"{number} {thing}" if number == 1 else f"{number} {things or thing + 's'}"


#: A row of a paragraph: its name and its text, or several lines, of which only the first has the name. None: no row.
Row = tuple[str, str | Sequence[str] | None]


def wrap_paragraph(rows: Sequence[Row]) -> str:
    """Return *rows* as lines."""
    lines = []
    for name, texts in rows:
        for number, text in enumerate([texts] if isinstance(texts, str) else texts or ()):
            heading = click.style(("" if number else name).ljust(12), bold=True)
            lines.append(f"{heading}{printable_cell(text)}")
    return "\n".join(lines)


def time_text(unix_s: float) -> str:
    """Return a date and time as text."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
    except (ValueError, OverflowError, OSError):  # another program corrupted the job hash
        return "?"


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as "2 min 5 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def duration_or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


def approximate_text(seconds: float) -> str:
    """Return a duration as text, rounded to seconds from 1 s on."""
    return f"{seconds:.0f} s" if 1 <= seconds < 60 else duration_text(seconds)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()) -> str:
    """Return a table as text. *red* has a flag for each row, True to print it in red."""
    rows = [tuple(printable_cell(cell) for cell in row) for row in rows]
    widths = [max(_width(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [click.style(_line(header, widths), bold=True)]
    for number, row in enumerate(rows):
        line = _line(row, widths)
        lines.append(click.style(line, fg="red") if red and red[number] else line)
    return "\n".join(lines)


def printable_cell(cell: str) -> str:
    """Return *cell* as one line of printable characters. Names of types and tasks can contain any character."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cell)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()


def _width(cell: str) -> int:
    """Return the width of *cell* in terminal columns. Chinese characters and many emoji take two."""
    width = wcswidth(cell)
    return len(cell) if width < 0 else width
