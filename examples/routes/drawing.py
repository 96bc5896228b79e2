"""Draws the tours of each city as a map, and the runs of each city on each side along time, as one HTML page."""

import math
from collections.abc import Iterator
from html import escape
from math import cos, radians
from pathlib import Path
from string import Template

from examples.comparing import page
from examples.comparing.figures import seconds
from examples.routes import report, work
from examples.routes.cities import City, Stop, all_cities
from examples.routes.measure import Job, Run
from examples.routes.planner import by_nearest_neighbour
from examples.routes.sides import SIDES

STYLE = Path(__file__).with_name("drawing.css")

LEGEND = """<div class="legend">
  <span><b class="run"></b>a change of the flood: one run that plans the city</span>
  <span><b class="run user"></b>a user's change</span>
  <span><b class="wait"></b>a user waits for the run to begin</span>
  <span><b class="locked"></b>holds a slot, waits for the city's lock</span>
  <span><b class="run overlap"></b>overlaps another run of its city</span>
  <span class="soft">Point at a bar for its change.</span>
</div>
"""

MAPS = Template("""<section id="maps"><header><h2>The tours in the end</h2>
<span class="soft">one colour for each agent; a square is the base; hollow: a stop that a user has dropped</span>
<label class="choice"><input type="checkbox" id="untried"> with nearest neighbour alone</label></header>
<div class="maps">$maps</div></section>
""")

MAP_WIDTH, MAP_HEIGHT, MARGIN = 360.0, 270.0, 16.0
KM_OF_A_DEGREE = 111.195
LANE_PX, BAR_PX = 30, 20


def write(path: Path, runs: list[Run], requests: list[work.Request]) -> Path:
    users = sum(request.mode == "on_demand" for request in requests)
    length_s = math.ceil(max([1.0, *(run.took_s for run in runs)]))
    table = f'<section><div class="scroll">{page.table(report.sides_table(runs))}</div></section>'
    return page.write(
        path,
        title="Routes",
        heading="A flood of changes, users who wait, and one plan of a city at a time",
        intro=f"{len(requests) - users} changes of stops come at once, in all cities but {work.AT_REST}; each plans "
        f"its city's tours again. Meanwhile {users} users change a stop, and wait.",
        said=report.sentences(runs),
        style=STYLE.read_text(encoding="utf-8"),
        body="".join([_maps(runs[0]), LEGEND, *(_chart(run, length_s) for run in runs), table]),
    )


# -- the runs of each city


def _chart(run: Run, length_s: int) -> str:
    overlapping = run.overlapping()
    rows = [_city(run, city, overlapping, length_s) for city in all_cities()]
    note = f"all done after {run.took_s:.1f} s"
    return page.chart(run.side, SIDES[run.side], note, [*rows, _users(run, length_s), page.axis(length_s)])


def _city(run: Run, city: str, overlapping: set[str], length_s: int) -> str:
    jobs = sorted(run.of_city(city), key=lambda job: job.started or 0.0)
    lines, number = page.packed((job.started or 0.0, _end(run, job)) for job in jobs)
    marks = "".join(
        "".join(_bars(run, job, job.id in overlapping, length_s, f"top:{5 + line * (BAR_PX + 2)}px;height:{BAR_PX}px;"))
        for job, line in zip(jobs, lines, strict=True)
    )
    return page.row(city, f"{len(jobs)} runs", marks, "", max(LANE_PX, 8 + number * (BAR_PX + 2)))


def _bars(run: Run, job: Job, is_overlapping: bool, length_s: int, style: str) -> Iterator[str]:
    assert job.started is not None, "a city has only runs that began"
    assert job.began is not None, "a city has only runs that began"
    if job.held_idle_s > length_s / 1000:
        yield _mark(run, job, "locked", job.started, job.began, length_s, style)
    classes = ["run", *(["user"] if job.mode == "on_demand" else []), *(["overlap"] if is_overlapping else [])]
    yield _mark(run, job, " ".join(classes), job.began, _end(run, job), length_s, style)


def _users(run: Run, length_s: int) -> str:
    """Draw a line for each user who waits, packed into rows."""
    jobs: list[Job] = sorted(run.select(mode="on_demand"), key=lambda job: job.published)  # type: ignore[arg-type]
    until = [job.began if job.began is not None else run.began + run.took_s for job in jobs]
    spans = zip((job.published for job in jobs), until, strict=True)
    lines, number = page.packed(spans, gap_s=length_s / 200)
    marks = [
        _mark(run, job, "wait", job.published, end, length_s, f"top:{4 + line * page.WAIT_ROW_PX}px;")
        for job, end, line in zip(jobs, until, lines, strict=True)
    ]
    return page.row("users waiting", "for the begin", "".join(marks), "users", max(24, 8 + number * page.WAIT_ROW_PX))


def _end(run: Run, job: Job) -> float:
    return job.planned or job.ended or run.began + run.took_s


def _mark(run: Run, job: Job, classes: str, start: float, end: float, length_s: int, style: str) -> str:
    return page.mark(start - run.began, end - run.began, length_s, classes, job.id[:8], _tip(run, job), style)


def _tip(run: Run, job: Job) -> str:
    who = "a user's change" if job.mode == "on_demand" else "a change of the flood"
    lines = [f"{job.type}, {who}", job.about, f"came at {job.published - run.began:.2f} s"]
    if job.began is not None:
        lines.append(f"planned after {seconds(job.user_waited_s)} s, for {seconds(_end(run, job) - job.began)} s")
    if job.held_idle_s > 0.01:
        lines.append(f"held a slot for {seconds(job.held_idle_s)} s before")
    return "\n".join(lines)


# -- the maps


def _maps(run: Run) -> str:
    note = '<p class="soft">before: nearest neighbour alone</p>'
    table = f'<div class="scroll">{page.table(report.cities_table(run))}{note}</div>'
    return MAPS.substitute(maps="".join(_map(city, run) for city in all_cities().values()) + table)


def _map(city: City, run: Run) -> str:
    book = run.book(city.name)
    stops = {stop.name: stop for stop in city.stops}
    place = _Projection([city.base, *city.stops])
    tours = [[stops[name] for name in tour] for tour in book["tours"]]
    visited = [stop for stop in city.stops if stop.name not in book["dropped"]]
    untried = by_nearest_neighbour(city.base, visited, city.agents)
    drawn = [f'<path class="untried" d="{place.closed(city.base, tour)}"/>' for tour in untried.tours]
    drawn += [f'<path class="a{nth}" d="{place.closed(city.base, tour)}"/>' for nth, tour in enumerate(tours)]
    for agent, tour in enumerate(tours):
        for nth, stop in enumerate(tour, 1):
            drawn.append(place.dot(stop, f"a{agent}", f"{stop.name}\nagent {agent + 1}, stop {nth} of {len(tour)}"))
    drawn += [place.dot(stops[name], "dropped", f"{name}\ndropped by a user") for name in book["dropped"]]
    x, y = place.of(city.base)
    drawn.append(f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" data-tip="{escape(city.base.name)}"/>')
    caption = f"<b>{escape(city.name)}</b> {len(tours)} agents, {len(visited)} stops, {book['km']:.1f} km"
    note = f'<span class="soft">nearest neighbour alone: {untried.km:.1f} km</span>'
    box = f'viewBox="0 0 {MAP_WIDTH:.0f} {MAP_HEIGHT:.0f}" role="img" aria-label="Tours in {escape(city.name)}"'
    return (
        f"<figure><svg {box}>{''.join(drawn)}{place.scale()}</svg><figcaption>{caption}{note}</figcaption></figure>\n"
    )


class _Projection:
    """Places of stops on a map: north is up, a kilometre is as long in both directions."""

    def __init__(self, stops: list[Stop]) -> None:
        self._narrowed = cos(radians(sum(stop.latitude for stop in stops) / len(stops)))
        xs, ys = zip(*(self._km(stop) for stop in stops), strict=True)
        wide, high = MAP_WIDTH - 2 * MARGIN, MAP_HEIGHT - 2 * MARGIN
        self.px_of_a_km = min(wide / (max(xs) - min(xs)), high / (max(ys) - min(ys)))
        self._middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2

    def _km(self, stop: Stop) -> tuple[float, float]:
        return stop.longitude * self._narrowed * KM_OF_A_DEGREE, stop.latitude * KM_OF_A_DEGREE

    def of(self, stop: Stop) -> tuple[float, float]:
        (x, y), (middle_x, middle_y) = self._km(stop), self._middle
        return MAP_WIDTH / 2 + (x - middle_x) * self.px_of_a_km, MAP_HEIGHT / 2 - (y - middle_y) * self.px_of_a_km

    def closed(self, base: Stop, tour: list[Stop]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*self.of(stop)) for stop in [base, *tour]) + "Z"

    def dot(self, stop: Stop, classes: str, tip: str) -> str:
        x, y = self.of(stop)
        return f'<circle class="{classes}" cx="{x:.1f}" cy="{y:.1f}" r="4" data-tip="{escape(tip)}"/>'

    def scale(self) -> str:
        km = next(km for km in (5, 2, 1, 0.5, 0.2) if km * self.px_of_a_km <= MAP_WIDTH / 4)
        right, y = MAP_WIDTH - MARGIN, MAP_HEIGHT - 8
        left = right - km * self.px_of_a_km
        line = f'<path class="scale" d="M{left:.1f} {y - 4}v4H{right:.1f}v-4"/>'
        return f'{line}<text x="{left - 5:.1f}" y="{y}" text-anchor="end">{km:g} km</text>'
