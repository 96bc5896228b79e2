"""Prints the results: tables, and sentences derived from the numbers."""

import math

from rich.console import Console
from rich.table import Table

from examples.comparing.figures import SAME, compared, percentile, seconds
from examples.pipeline.measure import MODES, TYPES, WORKERS, Run
from examples.pipeline.plan import Plan
from examples.pipeline.sides import SIDES

PERCENTILES = {"p50": 50, "p95": 95, "max": 100}

#: Short names of the sides for table headers. `show` prints the full names.
SHORT = {"affinity": "ours", "stock": "stock"}

#: Idle times below this number of seconds are not reported.
MIN_REPORTED_S = 1.0


def show(console: Console, runs: list[Run], plan: Plan) -> None:
    console.print(f"\nours: {SIDES['affinity']}; stock: {SIDES['stock']}, the same workers, prefetch 1\n")
    console.print(waits_table(runs))
    console.print(shares_table(runs))
    for error in runs[0].errors():
        console.print(f"Not read: {error}", style="yellow", markup=False, soft_wrap=True)
    for run in runs:
        if missing := run.unfinished(len(plan.requests)):
            console.print(f"{SIDES[run.side]}: {missing} chains did not finish in time.", style="red")
    console.print()
    for sentence in sentences(runs):
        console.print(f"* {sentence}", markup=False)


def waits_table(runs: list[Run]) -> Table:
    table = Table(title="Waits of jobs until their start, s", title_justify="left", title_style="bold")
    table.add_column("type")
    table.add_column("mode")
    table.add_column("jobs", justify="right")
    for run in runs:
        for name in PERCENTILES:
            table.add_column(f"{SHORT[run.side]}\n{name}", justify="right")
    for type_ in TYPES:
        for mode in MODES:
            counts = [str(len(run.select(type_, mode))) for run in runs]
            jobs = counts[0] if len(set(counts)) == 1 else " / ".join(counts)
            table.add_row(type_, mode.replace("_", "-"), jobs, *_wait_cells(runs, type_, mode))
        table.add_section()
    return table


def _wait_cells(runs: list[Run], type_: str, mode: str) -> list[str]:
    """Return the percentiles of each side. The shorter wait of each pair is bold."""
    waits = [run.waits(type_, mode) for run in runs]
    figures = [[percentile(side, percent) if side else math.inf for percent in PERCENTILES.values()] for side in waits]
    shortest = [min(pair) for pair in zip(*figures, strict=True)]
    return [_cell(figure, figure == best) for side in figures for figure, best in zip(side, shortest, strict=True)]


def _cell(figure: float, is_shortest: bool) -> str:
    if figure == math.inf:
        return "-"
    return f"[bold]{seconds(figure)}[/bold]" if is_shortest else seconds(figure)


def shares_table(runs: list[Run]) -> Table:
    table = Table(title="Share of each type's jobs per worker", title_justify="left", title_style="bold")
    table.add_column("worker")
    for run in runs:
        for type_ in TYPES:
            table.add_column(f"{SHORT[run.side]}\n{type_}", justify="right")
    for worker in WORKERS:
        table.add_row(worker, *(_share(run, type_, worker) for run in runs for type_ in TYPES))
    return table


def _share(run: Run, type_: str, worker: str) -> str:
    started = [job for job in run.select(type_) if job.started is not None]
    if type_ not in WORKERS[worker] or not started:
        return "-"
    return f"{100 * sum(job.worker == worker for job in started) / len(started):.0f} %"


def sentences(runs: list[Run]) -> list[str]:
    """Return the main results as sentences, also where stock Celery is better."""
    ours, stock = runs
    candidates = [
        _users(ours.first_waits("on_demand"), stock.first_waits("on_demand")),
        _batch(ours, stock),
        _whole(ours.took_s, stock.took_s),
        _misplaced(len(ours.misplaced()), len(stock.misplaced())),
        _idle(ours.avoidable_idle_s(), stock.avoidable_idle_s()),
        _unequal_load(ours.computed_s(), stock.computed_s()),
    ]
    return [sentence for sentence in candidates if sentence]


def _users(ours: list[float], stock: list[float]) -> str:
    if not ours or not stock:
        return ""
    (a, a95), (b, b95) = ((percentile(waits, 50), percentile(waits, 95)) for waits in (ours, stock))
    return (
        f"A user's request waits {seconds(a)} s for its start (median; 95th percentile {seconds(a95)} s). "
        f"On stock Celery it waits {seconds(b)} s ({seconds(b95)} s): {compared(b, a)}."
    )


def _batch(ours: Run, stock: Run) -> str:
    parts = []
    for type_, noun in (("pdf", "a PDF"), ("excel", "a spreadsheet")):
        a, b = ours.waits(type_, "queued"), stock.waits(type_, "queued")
        if a and b:
            a50, b50 = percentile(a, 50), percentile(b, 50)
            parts.append(f"{noun} waited {seconds(a50)} s; on stock Celery {seconds(b50)} s, {compared(b50, a50)}")
    reason = "celery_affinity starts short jobs first; stock Celery alternates between queues."
    return f"In the batch (medians), {', and '.join(parts)}. {reason}" if parts else ""


def _whole(ours: float, stock: float) -> str:
    return f"All the work took {ours:.1f} s, on stock Celery {stock:.1f} s: {compared(stock, ours)}."


def _misplaced(ours: int, stock: int) -> str:
    if not ours and not stock:
        return ""
    return f"Jobs that the versatile worker ran although their specialist was free: {ours}. On stock Celery: {stock}."


def _idle(ours: float, stock: float) -> str:
    if max(ours, stock) < MIN_REPORTED_S:
        return ""
    return (
        f"Slots were idle for {ours:.1f} s in total while a job that they could run was waiting. "
        f"On stock Celery: {stock:.1f} s."
    )


def _unequal_load(ours: float, stock: float) -> str:
    """Warn if the computer was busier on one side: the same work should take the same time on both."""
    if abs(stock / max(ours, 0.001) - 1) < SAME:
        return ""
    return (
        f"Unequal load: reading and indexing took {ours:.0f} s of slot time, on stock Celery {stock:.0f} s. "
        "The work is the same, so this computer was busier on one side. Run the demo again."
    )
