"""The tables of the example, for the terminal and for the page. Times are in seconds."""

from collections.abc import Iterator

from rich import box
from rich.markup import escape
from rich.table import Table

from celery_affinity.lab.optimum import Optimum
from celery_affinity.lab.waits import WaitReport, Waits
from examples.comparing.figures import SAME_S, seconds

_NO_JOBS = Waits(0, 0)


def waits_table(before: WaitReport, after: WaitReport, names: tuple[str, str], title: str) -> Table:
    """Return a table of two reports: median, 95th percentile and maximum of all waits, per type and per mode."""
    table = _table(title, "jobs", *(f"{statistic} {name}" for statistic in ("p50", "p95", "max") for name in names))
    for group, one, other in _rows(before, after):
        pairs = ((one.p50_s, other.p50_s), (one.p95_s, other.p95_s), (one.max_s, other.max_s))
        table.add_row(group, str(other.jobs), *(_wait_text(wait_s) for pair in pairs for wait_s in pair))
    return table


def prediction_table(predicted: WaitReport, measured: WaitReport) -> Table:
    """Return a table of the predicted waits, the measured waits, and the relative errors."""
    columns = (f"{statistic} {name}" for statistic in ("p50", "p95") for name in ("predicted", "measured", "error"))
    table = _table("Predicted and measured: waits, s, after the change", "jobs", *columns)
    for group, one, other in _rows(predicted, measured):
        cells = []
        for predicted_s, measured_s in ((one.p50_s, other.p50_s), (one.p95_s, other.p95_s)):
            error = relative_error(predicted_s, measured_s)
            cells += [_wait_text(predicted_s), _wait_text(measured_s), "-" if error is None else f"{error:+.1%}"]
        table.add_row(group, str(other.jobs), *cells)
    return table


def optimum_table(result: Optimum) -> Table:
    table = _table("lab optimum: mean waits, s", "mean wait", "ratio to upper bound")
    waits = {
        "recorded": result.recorded_s or 0.0,
        "replayed": result.replayed_s,
        "upper bound: the best schedule found": result.upper_s,
        f"lower bound: {result.bound}": result.lower_s,
    }
    for name, wait_s in waits.items():
        table.add_row(name, seconds(wait_s), f"{wait_s / result.upper_s:.2f}" if result.upper_s else "-")
    return table


def relative_error(predicted_s: float | None, measured_s: float | None) -> float | None:
    """Return the error relative to the measured wait, or None if a wait is missing or both are negligible."""
    if predicted_s is None or not measured_s or max(predicted_s, measured_s) < SAME_S:
        return None
    return (predicted_s - measured_s) / measured_s


def _rows(before: WaitReport, after: WaitReport) -> Iterator[tuple[str, Waits, Waits]]:
    yield "all", before.all, after.all
    for old, new in ((before.types, after.types), (before.modes, after.modes)):
        for name in dict.fromkeys((*old, *new)):
            yield name, old.get(name, _NO_JOBS), new.get(name, _NO_JOBS)


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


def _wait_text(wait_s: float | None) -> str:
    return "-" if wait_s is None else seconds(wait_s)
