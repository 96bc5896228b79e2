"""Draws how calls merge into runs: a dot when each call was published, and a line to the run that answered it."""

import math
from html import escape

from examples.comparing import page
from examples.comparing.figures import seconds
from examples.routes import merging
from examples.routes.cities import all_cities
from examples.routes.measure import Job, Run
from examples.routes.merging import calls_of
from examples.routes.sides import SIDES

LEGEND = """<div class="legend">
  <span><b class="call"></b>a change, when it was published</span>
  <span><b class="call user"></b>a user's change</span>
  <span><b class="run"></b>the run that plans it, with the number of its changes</span>
  <span><b class="run asked"></b>a run with a user's change</span>
  <span><b class="telling"></b>the callers receive their results</span>
  <span><b class="run again"></b>a recurring call</span>
  <span class="soft">Point at a run to see its changes.</span>
</div>
"""

#: In pixels from the top of a city's row: the position of the calls, the end of their lines, and the height of a run.
CALLS_PX, LINES_PX, RUN_PX = 12, 50, 24

#: Maximum number of changes that the tip of a run lists. For the others it only has their number.
MAX_LISTED = 12


def section(single: Run, merged: Run) -> str:
    """Return the section of the page about merging: sentences, a table, and the chart of calls and runs."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in merging.sentences(single, merged)[1:])
    figures = f'<div class="scroll">{page.table(merging.table(single, merged))}</div>'
    header = f"<header><h2>{len(merged.change_calls()):,} changes, and calls that merge</h2></header>"
    return f'<section id="merging">{header}<ul class="said">{items}</ul>{figures}</section>\n{LEGEND}{_chart(merged)}'


def _chart(run: Run) -> str:
    ends = (job.ended for job in run.jobs.values() if job.ended is not None)
    length_s = math.ceil(max(1.0, *(end - run.began for end in ends)))
    calls = calls_of(run)
    rows = [_city(run, city, calls, length_s) for city in all_cities()]
    note = f"{len(run.change_calls()):,} changes, {len(merging.runs_of(run))} runs, all done after {run.took_s:.1f} s"
    return page.chart(run.side, SIDES[run.side], note, [*rows, page.axis(length_s)])


def _city(run: Run, city: str, calls: dict[str, list[Job]], length_s: int) -> str:
    # Recurring calls can run before the first change.
    jobs = [job for job in run.of_city(city) if _end(run, job) > 0]
    marks = [_lines(run, job, calls[job.id], length_s) for job in jobs if job.id in calls]
    for nth, job in enumerate(jobs, 1):
        marks += [_dot(run, job, call, length_s) for call in calls.get(job.id, [])]
        marks.append(_bar(run, job, f"{city}, run {nth} of {len(jobs)}", calls.get(job.id, []), length_s))
    number = sum(len(calls.get(job.id, [])) for job in jobs)
    note = f"{number} calls in {len(jobs)} runs" if number else f"planned {len(jobs)} times"
    return page.row(city, note, "".join(marks), "flow", LINES_PX + RUN_PX + 6)


def _lines(run: Run, job: Job, calls: list[Job], length_s: int) -> str:
    """Draw a line from each call to the start of its run. The lines of one run are one mark."""
    end = 1000 * ((job.began or 0.0) - run.began) / length_s
    paths = ""
    for mode in ("queued", "on_demand"):
        starts = [1000 * (call.published - run.began) / length_s for call in calls if call.mode == mode]
        steps = "".join(f"M{start:.1f} {CALLS_PX}L{end:.1f} {LINES_PX}" for start in starts)
        paths += f'<path class="{mode}" d="{steps}" vector-effect="non-scaling-stroke"/>' if starts else ""
    style = f'style="height:{LINES_PX}px" viewBox="0 0 1000 {LINES_PX}" preserveAspectRatio="none"'
    return f'<svg class="lines" data-way="{job.id[:8]}" {style} aria-hidden="true">{paths}</svg>'


def _dot(run: Run, job: Job, call: Job, length_s: int) -> str:
    published_s = call.published - run.began
    kind = "a user's change" if call.mode == "on_demand" else "a change"
    lines = [f"{call.type}, {kind}", call.about, f"published at {published_s:.2f} s"]
    if job.planned is not None:
        lines.append(f"in a plan after {seconds(job.planned - call.published)} s, with {len(job.changes) - 1} others")
    style = f"top:{CALLS_PX - 7}px;height:7px;"
    classes = "call user" if call.mode == "on_demand" else "call"
    return page.mark(published_s, published_s, length_s, classes, job.id[:8], "\n".join(lines), style)


def _bar(run: Run, job: Job, title: str, calls: list[Job], length_s: int) -> str:
    start, end = max(0.0, (job.began or 0.0) - run.began), _end(run, job)
    users = [call for call in calls if call.mode == "on_demand"]
    listed = [*(f"{call.about}, by a user" for call in users), *(call.about for call in calls if call not in users)]
    others = [f"and {len(listed) - MAX_LISTED} more"] if len(listed) > MAX_LISTED else []
    planned = f"planning began at {start:.2f} s, and took {seconds(end - start)} s"
    content = f"{len(calls)} changes" if calls else "a recurring call"
    tip = "\n".join([f"{title}: {content}", planned, *listed[:MAX_LISTED], *others])
    classes = "run asked" if users else "run" if calls else "run again"
    style = f"top:{LINES_PX}px;height:{RUN_PX}px;"
    bar = page.mark(start, end, length_s, classes, job.id[:8], tip, style, text=str(len(calls) or "again"))
    ended = (job.ended or job.planned or run.began) - run.began
    style = f"top:{LINES_PX + RUN_PX // 3}px;height:{RUN_PX // 3}px;"
    return bar + page.mark(end, max(end, ended), length_s, "telling", job.id[:8], tip, style)


def _end(run: Run, job: Job) -> float:
    """Return when *job* had finished planning, in seconds after the first change."""
    return (job.planned or job.ended or run.began + run.took_s) - run.began
