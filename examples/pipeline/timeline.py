"""Draws a timeline of all slots of both sides on one HTML page."""

import math
from html import escape
from pathlib import Path

from examples.comparing import page
from examples.comparing.figures import seconds
from examples.comparing.runs import Job
from examples.pipeline import report
from examples.pipeline.measure import WORKERS, Run
from examples.pipeline.plan import Plan
from examples.pipeline.sides import SIDES

STYLE = """
:root { --pdf: #0072b2; --excel: #009e73; --index: #e69f00; }
@media (prefers-color-scheme: dark) { :root { --pdf: #3d9bdc; --excel: #22b88c; --index: #f0b63a; } }
.pdf { background: var(--pdf); } .excel { background: var(--excel); } .index { background: var(--index); }
.waits :is(td, th):nth-child(2) { text-align: left; }
"""

LEGEND = """<div class="legend">
  <span><b class="pdf"></b>pdf: text of a PDF</span>
  <span><b class="excel"></b>excel: words and numbers of a spreadsheet</span>
  <span><b class="index"></b>index: full-text index</span>
  <span><b class="pdf user"></b>on demand: a user is waiting</span>
  <span><b class="wait"></b>a user waits for the start</span>
  <span><b class="pdf failed"></b>could not be read</span>
  <span class="soft">Point at a bar to highlight all jobs of its document.</span>
</div>
"""

TABLES = """<section>
<div class="tables">
<div class="scroll waits"><h2>Waits of jobs until their start, s</h2>
<p class="soft">ours is celery_affinity; the shorter wait is bold</p>{waits}</div>
<div class="scroll"><h2>Share of each type's jobs per worker</h2>
<p class="soft">percent of the type's jobs</p>{shares}</div>
</div>
{errors}
</section>
"""


def write(path: Path, runs: list[Run], plan: Plan) -> Path:
    length_s = math.ceil(max([1.0, *(run.took_s for run in runs)]))
    tables = TABLES.format(
        waits=page.table(report.waits_table(runs)),
        shares=page.table(report.shares_table(runs)),
        errors="".join(f'<p class="soft">Not read: {escape(error)}</p>' for error in runs[0].errors()),
    )
    return page.write(
        path,
        title="Timeline of the slots",
        heading="The same documents, the same workers, two schedulers",
        intro=f"A batch of {plan.count('queued')} documents waits while users request {plan.count('on_demand')}. "
        "Each row is one worker slot, each bar one task. Both charts have the same scale.",
        sentences=report.sentences(runs),
        style=STYLE,
        body="".join([LEGEND, *(_chart(run, length_s) for run in runs), tables]),
    )


def _chart(run: Run, length_s: int) -> str:
    rows = [
        page.row(worker, ", ".join(WORKERS[worker]), "".join(_bar(run, job, length_s) for job in jobs))
        for (worker, _), jobs in run.slots().items()
    ]
    note = f"all done after {run.took_s:.1f} s"
    return page.chart(run.side, SIDES[run.side], note, [*rows, _users(run, length_s), page.axis(length_s)])


def _bar(run: Run, job: Job, length_s: int) -> str:
    assert job.started is not None, "a slot has only jobs that were started"
    ended = job.ended if job.ended is not None else run.began + run.took_s
    classes = [job.type, *(["user"] if job.mode == "on_demand" else []), *(["failed"] if job.error else [])]
    return _mark(run, job, " ".join(classes), job.started, ended, length_s)


def _users(run: Run, length_s: int) -> str:
    """Draw a line for each waiting user, from the request to the start of the first task."""
    jobs = sorted((job for job in run.select(mode="on_demand") if job.type != "index"), key=lambda job: job.published)
    until = [job.started if job.started is not None else run.began + run.took_s for job in jobs]
    spans = zip((job.published for job in jobs), until, strict=True)
    rows, number = page.pack_rows(spans, gap_s=length_s / 200)
    lines = [
        _mark(run, job, "wait", job.published, end, length_s, f"top:{4 + row * page.WAIT_ROW_PX}px;")
        for job, end, row in zip(jobs, until, rows, strict=True)
    ]
    height_px = max(24, 8 + number * page.WAIT_ROW_PX)
    return page.row("users waiting", "for the start", "".join(lines), "users", height_px)


def _mark(run: Run, job: Job, classes: str, start: float, end: float, length_s: int, style: str = "") -> str:
    return page.mark(start - run.began, end - run.began, length_s, classes, job.root[:8], _tip(run, job), style)


def _tip(run: Run, job: Job) -> str:
    lines = [job.about, f"{job.type}, {'on demand' if job.mode == 'on_demand' else 'queued'}"]
    lines.append(f"requested at {job.published - run.began:.2f} s")
    if job.started is not None:
        lines.append(f"waited {seconds(job.wait_s)} s for the {job.worker} worker")
    if job.started is not None and job.ended is not None:
        lines.append(f"ran {seconds(job.ended - job.started)} s")
    return "\n".join([*lines, *([job.error] if job.error else [])])
