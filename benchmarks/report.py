"""Formats the results: a table of goals, and a table per part."""

from collections.abc import Sequence
from typing import NamedTuple

from .goals import GOALS, Goal
from .results import Part, Results

NOT_MEASURED = "not measured"


class Outcome(NamedTuple):
    """A goal and the measured value, or None if it was not measured."""

    goal: Goal
    value: float | None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return NOT_MEASURED
        return "ok" if self.goal.is_met_by(self.value) else "missed"

    @property
    def shown(self) -> str:
        return "-" if self.value is None else f"{_number(self.value)} {self.goal.unit}"


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(goal, goal.reached(results)) for goal in GOALS]


def goal_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return the table of goals, with its header as the first row."""
    header = ("what", "baseline (stock Celery unless named)", "goal", "reached", "")
    return [header, *((row.goal.name, row.goal.note, row.goal.wanted, row.shown, row.verdict) for row in outcomes)]


def part_rows(part: Part) -> list[tuple[str, ...]]:
    """Return the table of a part, with its header as the first row.

    It has the medians, the ratio of the first number to the baseline with its range, and the ratio of the first CPU
    time, which other load on the machine affects less.
    """
    names = part.names()
    cpu = next((name for name in names[1:] if name.endswith("_us")), "")
    rows = []
    for subject, baseline in part.baseline.items():
        ratios = part.ratios(subject, baseline, names[0])
        compared = f"{part.ratio(subject, baseline, names[0]):.2f}" if ratios else "-"
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else ""
        cpu_ratio = part.ratio(subject, baseline, cpu)
        rows.append(
            (
                *(subject, compared, spread),
                *([f"{cpu_ratio:.2f}" if cpu_ratio else "-"] if cpu else []),
                *(_number(part.median(subject, name)) for name in names),
            )
        )
    return [("", "x baseline", "range", *([f"x {cpu}"] if cpu else []), *names), *rows]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal, with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(line).rstrip() for line in lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    rule = ("---", *("---:",) * (len(rows[0]) - 1))
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])) + "\n"
