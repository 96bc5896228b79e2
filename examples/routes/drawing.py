"""Draws a timeline of each city's runs on each side, and assembles the page."""

import math
from collections.abc import Iterator
from pathlib import Path

from examples.comparing import page
from examples.comparing.figures import seconds
from examples.routes import flow, maps, merging, report, work
from examples.routes.cities import all_cities
from examples.routes.measure import Job, Run
from examples.routes.sides import SIDES

STYLE = Path(__file__).with_name("drawing.css")

LEGEND = """<div class="legend">
  <span><b class="run"></b>a run that plans a change of the flood</span>
  <span><b class="run user"></b>a run that plans a user's change</span>
  <span><b class="wait"></b>a user waits for the run to start</span>
  <span><b class="locked"></b>a run holds a slot and waits for the city's lock</span>
  <span><b class="run overlap"></b>a run overlaps another run of its city</span>
  <span class="soft">Point at a bar to see its change.</span>
</div>
"""

LANE_PX, BAR_PX = 30, 20


def write(path: Path, runs: list[Run], merged: Run, requests: list[work.Request], failures: list[str]) -> Path:
    users = sum(request.mode == "on_demand" for request in requests)
    length_s = math.ceil(max([1.0, *(run.took_s for run in runs)]))
    table = f'<section><div class="scroll">{page.table(report.sides_table(runs))}</div></section>'
    return page.write(
        path,
        title="Routes",
        heading="A flood of changes, users who wait, and one run per city at a time",
        intro=f"A flood of {len(requests) - users} changes of stops is published, in all cities except {work.AT_REST}. "
        f"Each plans its city's tours again. During the flood, {users} users change a stop and wait. At the end, "
        f"{len(merged.change_calls()):,} changes are published, and calls merge.",
        sentences=[*failures, *report.sentences(runs), *merging.sentences(runs[0], merged)[:1]],
        style=STYLE.read_text(encoding="utf-8"),
        body="".join(
            [
                maps.section(runs[0]),
                LEGEND,
                *(_chart(run, length_s) for run in runs),
                table,
                flow.section(runs[0], merged),
            ]
        ),
    )


def _chart(run: Run, length_s: int) -> str:
    overlapping = run.overlapping()
    rows = [_city(run, city, overlapping, length_s) for city in all_cities()]
    note = f"all done after {run.took_s:.1f} s"
    return page.chart(run.side, SIDES[run.side], note, [*rows, _users(run, length_s), page.axis(length_s)])


def _city(run: Run, city: str, overlapping: set[str], length_s: int) -> str:
    jobs = sorted(run.of_city(city), key=lambda job: job.started or 0.0)
    lines, number = page.pack_rows((job.started or 0.0, _end(run, job)) for job in jobs)
    marks = "".join(
        "".join(_bars(run, job, job.id in overlapping, length_s, f"top:{5 + line * (BAR_PX + 2)}px;height:{BAR_PX}px;"))
        for job, line in zip(jobs, lines, strict=True)
    )
    return page.row(city, f"{len(jobs)} runs", marks, "", max(LANE_PX, 8 + number * (BAR_PX + 2)))


def _bars(run: Run, job: Job, is_overlapping: bool, length_s: int, style: str) -> Iterator[str]:
    assert job.started is not None, "a city has only runs that have started"
    assert job.began is not None, "a city has only runs that have started"
    if job.held_idle_s > length_s / 1000:
        yield _mark(run, job, "locked", job.started, job.began, length_s, style)
    classes = ["run", *(["user"] if job.mode == "on_demand" else []), *(["overlap"] if is_overlapping else [])]
    yield _mark(run, job, " ".join(classes), job.began, _end(run, job), length_s, style)


def _users(run: Run, length_s: int) -> str:
    """Draw a line for each waiting user."""
    jobs: list[Job] = sorted(run.select(mode="on_demand"), key=lambda job: job.published)  # type: ignore[arg-type]
    until = [job.began if job.began is not None else run.began + run.took_s for job in jobs]
    spans = zip((job.published for job in jobs), until, strict=True)
    lines, number = page.pack_rows(spans, gap_s=length_s / 200)
    marks = [
        _mark(run, job, "wait", job.published, end, length_s, f"top:{4 + line * page.WAIT_ROW_PX}px;")
        for job, end, line in zip(jobs, until, lines, strict=True)
    ]
    return page.row("users waiting", "for the start", "".join(marks), "users", max(24, 8 + number * page.WAIT_ROW_PX))


def _end(run: Run, job: Job) -> float:
    return job.planned or job.ended or run.began + run.took_s


def _mark(run: Run, job: Job, classes: str, start: float, end: float, length_s: int, style: str) -> str:
    return page.mark(start - run.began, end - run.began, length_s, classes, job.id[:8], _tip(run, job), style)


def _tip(run: Run, job: Job) -> str:
    kind = "a user's change" if job.mode == "on_demand" else "a change of the flood"
    lines = [f"{job.type}, {kind}", job.about, f"published at {job.published - run.began:.2f} s"]
    if job.began is not None:
        lines.append(
            f"planned after {seconds(job.began - job.published)} s, for {seconds(_end(run, job) - job.began)} s"
        )
    if job.held_idle_s > 0.01:
        lines.append(f"held a slot for {seconds(job.held_idle_s)} s before that")
    return "\n".join(lines)
