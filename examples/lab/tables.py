"""The tables of the example, for the terminal and for the page. Times are seconds."""

from collections.abc import Iterator

from rich import box
from rich.markup import escape
from rich.table import Table

from celery_affinity.lab.optimum import Optimum
from celery_affinity.lab.waits import WaitReport, Waits
from examples.comparing.figures import SAME_S, seconds

_NONE = Waits(0, 0)


def of_waits(before: WaitReport, after: WaitReport, names: tuple[str, str], title: str) -> Table:
    """Return the waits of all jobs, by type and by mode: half of them up to, 95 % up to, the longest."""
    table = _table(title, "jobs", *(f"{part} {name}" for part in ("p50", "p95", "max") for name in names))
    for who, one, other in _rows(before, after):
        pairs = ((one.p50_s, other.p50_s), (one.p95_s, other.p95_s), (one.max_s, other.max_s))
        table.add_row(who, str(other.jobs), *(_said(each) for pair in pairs for each in pair))
    return table


def of_prediction(predicted: WaitReport, measured: WaitReport) -> Table:
    """Return the predicted waits beside those that were measured, with the difference as a part of the latter."""
    columns = (f"{part} {name}" for part in ("p50", "p95") for name in ("predicted", "measured", "off by"))
    table = _table("Predicted and measured: waits, s, after the change", "jobs", *columns)
    for who, one, other in _rows(predicted, measured):
        cells = []
        for ours, theirs in ((one.p50_s, other.p50_s), (one.p95_s, other.p95_s)):
            cells += [_said(ours), _said(theirs), _said_part(off_by(ours, theirs))]
        table.add_row(who, str(other.jobs), *cells)
    return table


def of_optimum(found: Optimum) -> Table:
    table = _table("lab optimum: mean waits, s", "mean wait", "of the upper bound")
    waits = {
        "recorded": found.recorded_s or 0.0,
        "replayed": found.replayed_s,
        "upper bound: the best schedule found": found.upper_s,
        f"lower bound: {found.bound}": found.lower_s,
    }
    for name, wait_s in waits.items():
        table.add_row(name, seconds(wait_s), f"{wait_s / found.upper_s:.2f}" if found.upper_s else "-")
    return table


def off_by(predicted_s: float | None, measured_s: float | None) -> float | None:
    """Return the difference as a part of the measured wait; None if there is none, or both are next to nothing."""
    if predicted_s is None or not measured_s or max(predicted_s, measured_s) < SAME_S:
        return None
    return (predicted_s - measured_s) / measured_s


def _rows(before: WaitReport, after: WaitReport) -> Iterator[tuple[str, Waits, Waits]]:
    yield "all", before.all, after.all
    for ours, theirs in ((before.types, after.types), (before.modes, after.modes)):
        for name in dict.fromkeys((*ours, *theirs)):
            yield name, ours.get(name, _NONE), theirs.get(name, _NONE)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    return table


def _said(wait_s: float | None) -> str:
    return "-" if wait_s is None else seconds(wait_s)


def _said_part(part: float | None) -> str:
    return "-" if part is None else f"{part:+.1%}"
