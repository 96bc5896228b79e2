"""Tables, paragraphs, times and numbers as people read them: what the texts of all reports are made of."""

import time
from collections.abc import Sequence

import click
from wcwidth import wcswidth

from ..scheduler.cohorts import CohortRow


def mode_text(on_demand: bool) -> str:
    """Return the mode of a job in words."""
    return "on demand" if on_demand else "queued"


def pluralize(number: int, thing: str, things: str = "") -> str:
    """Return a number of things, such as "1 slot" or "2 slots"."""
    return f"{number} {thing}" if number == 1 else f"{number} {things or thing + 's'}"


def wrap_paragraph(rows: Sequence[tuple[str, str]]) -> str:
    """Return rows, each a name and a text, as lines."""
    return "\n".join(f"{click.style(name.ljust(12), bold=True)}{printable_cell(text)}" for name, text in rows)


def time_text(unix_s: float) -> str:
    """Return a time of day in words."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
    except (ValueError, OverflowError, OSError):  # another program spoiled the row
        return "?"


def duration_text(seconds: float) -> str:
    """Return a time in the words of people, such as "2 min 5 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def approximate_text(seconds: float) -> str:
    """Return a time in the words of people, in whole seconds if it has some."""
    return f"{seconds:.0f} s" if 1 <= seconds < 60 else duration_text(seconds)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()) -> str:
    """Return a table as text. *red*: for each row, whether it is printed in red."""
    rows = [tuple(printable_cell(cell) for cell in row) for row in rows]
    widths = [max(_width(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [click.style(_line(header, widths), bold=True)]
    for number, row in enumerate(rows):
        line = _line(row, widths)
        lines.append(click.style(line, fg="red") if red and red[number] else line)
    return "\n".join(lines)


def with_cohort_column(
    of: Sequence[CohortRow], header: Sequence[str], rows: Sequence[Sequence[str]], red: Sequence[bool] = ()
) -> str:
    """Return *rows* as a table; each row is about the entry of *of* at its place.

    If an entry names its cohort, as all do where there are several, the first column has cohorts. *red*: as in `table`.
    """
    if not any(each.cohort for each in of):
        return format_table(header, rows, red)
    with_cohort = [(each.cohort or "", *row) for each, row in zip(of, rows, strict=True)]
    return format_table(("cohort", *header), with_cohort, red)


def printable_cell(cell: str) -> str:
    """Return *cell* in one line of printable characters: names of types and tasks may hold any character."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cell)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()


def _width(cell: str) -> int:
    """Return how many columns of a terminal *cell* takes: Chinese characters and many emoji take two."""
    width = wcswidth(cell)
    return len(cell) if width < 0 else width
