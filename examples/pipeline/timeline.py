"""Draws the slots of both runs as one HTML page that needs nothing but a browser."""

import math
from html import escape
from pathlib import Path
from string import Template

from rich.table import Table

from examples.pipeline import report
from examples.pipeline.measure import WORKERS, Job, Run
from examples.pipeline.plan import Plan
from examples.pipeline.sides import SIDES

TEMPLATE = Path(__file__).with_suffix(".html")

WAIT_ROW_PX = 6


def write(path: Path, runs: list[Run], plan: Plan) -> Path:
    length_s = math.ceil(max([1.0, *(run.took_s for run in runs)]))
    errors = runs[0].errors()
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        intro=f"A batch of {plan.count('queued')} documents piles up while users ask for {plan.count('on_demand')}. "
        "Each row is one worker slot, each bar one task; both charts have the same scale.",
        said="".join(f"<li>{escape(sentence)}</li>" for sentence in report.sentences(runs)),
        charts="".join(_chart(run, length_s) for run in runs),
        waits=_table(report.waits_table(runs)),
        shares=_table(report.shares_table(runs)),
        errors="".join(f'<p class="soft">Not read: {escape(error)}</p>' for error in errors),
    )
    path.write_text(page, encoding="utf-8")
    return path


def _chart(run: Run, length_s: int) -> str:
    rows = [_slot(run, worker, jobs, length_s) for (worker, _), jobs in run.slots().items()]
    done = f'<span class="soft">all done after {run.took_s:.1f} s</span>'
    header = f"<header><h2>{escape(SIDES[run.side])}</h2>{done}</header>"
    chart = "".join([*rows, _users(run, length_s), _axis(length_s)])
    return f'<section id="{run.side}">{header}<div class="scroll"><div class="chart">{chart}</div></div></section>\n'


def _slot(run: Run, worker: str, jobs: list[Job], length_s: int) -> str:
    bars = "".join(_bar(run, job, length_s) for job in jobs)
    label = f"<label>{worker}<small>{', '.join(WORKERS[worker])}</small></label>"
    return f'<div class="row">{label}<div class="lane">{bars}</div></div>\n'


def _bar(run: Run, job: Job, length_s: int) -> str:
    assert job.started is not None, "a slot holds only jobs that were started"
    ended = job.ended if job.ended is not None else run.began + run.took_s
    classes = [job.type, *(["user"] if job.mode == "on_demand" else []), *(["failed"] if job.error else [])]
    return _span(run, job, " ".join(classes), job.started, ended, length_s)


def _users(run: Run, length_s: int) -> str:
    """Draw a line for each user who waits, from the request to the start of the first task, packed into rows."""
    free_at: list[float] = []
    lines = []
    for job in sorted(run.select(mode="on_demand"), key=lambda job: job.published):
        if job.type == "index":
            continue
        until = job.started if job.started is not None else run.began + run.took_s
        row = next((number for number, end in enumerate(free_at) if end < job.published), len(free_at))
        free_at[row : row + 1] = [until + length_s / 200]
        lines.append(_span(run, job, "wait", job.published, until, length_s, f"top:{4 + row * WAIT_ROW_PX}px;"))
    height = 8 + len(free_at) * WAIT_ROW_PX
    return (
        f'<div class="row"><label>users waiting<small>for the start</small></label>'
        f'<div class="lane users" style="height:{max(24, height)}px">{"".join(lines)}</div></div>\n'
    )


def _span(run: Run, job: Job, classes: str, start: float, end: float, length_s: int, style: str = "") -> str:
    left, width = 100 * (start - run.began) / length_s, 100 * (end - start) / length_s
    return (
        f'<i class="{classes}" style="{style}left:{left:.3f}%;width:{width:.3f}%" data-way="{job.root[:8]}" '
        f'data-tip="{escape(_tip(run, job))}"></i>'
    )


def _tip(run: Run, job: Job) -> str:
    lines = [job.document, f"{job.type}, {'on demand' if job.mode == 'on_demand' else 'queued'}"]
    lines.append(f"asked for at {job.published - run.began:.2f} s")
    if job.started is not None:
        lines.append(f"waited {report.seconds(job.wait_s)} s for the {job.worker} worker")
    if job.started is not None and job.ended is not None:
        lines.append(f"ran {report.seconds(job.ended - job.started)} s")
    return "\n".join([*lines, *([job.error] if job.error else [])])


def _axis(length_s: int) -> str:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 600, length_s) if length_s / step <= 12)
    ticks = "".join(f'<span style="left:{100 * t / length_s:.3f}%">{t} s</span>' for t in range(0, length_s + 1, step))
    return f'<div class="row axis"><label></label><div class="lane">{ticks}</div></div>\n'


def _table(table: Table) -> str:
    """Return a table of the report as HTML."""
    columns = [list(column.cells) for column in table.columns]
    head = "".join(f"<th>{escape(str(column.header))}</th>".replace("\n", "<br>") for column in table.columns)
    rows = ["".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in zip(*columns, strict=True)]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _cell(cell: object) -> str:
    text = escape(str(cell))
    return text.replace("[bold]", "<b>").replace("[/bold]", "</b>")
