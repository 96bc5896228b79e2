"""Draws the tours of each city as a map."""

from html import escape
from math import cos, radians
from string import Template

from examples.comparing import page
from examples.routes import report
from examples.routes.cities import City, Stop, all_cities
from examples.routes.measure import Run
from examples.routes.planner import by_nearest_neighbour

MAPS = Template("""<section id="maps"><header><h2>The final tours</h2>
<span class="soft">one colour per agent; a square is the base; a hollow circle is a stop that a user has dropped</span>
<label class="choice"><input type="checkbox" id="untried"> nearest neighbour only</label></header>
<div class="maps">$maps</div></section>
""")

MAP_WIDTH, MAP_HEIGHT, MARGIN = 360.0, 270.0, 16.0
KM_PER_DEGREE = 111.195


def section(run: Run) -> str:
    note = '<p class="soft">before: nearest neighbour only</p>'
    table = f'<div class="scroll">{page.table(report.cities_table(run))}{note}</div>'
    return MAPS.substitute(maps="".join(_map(city, run) for city in all_cities().values()) + table)


def _map(city: City, run: Run) -> str:
    book = run.book(city.name)
    stops = {stop.name: stop for stop in city.stops}
    projection = _Projection([city.base, *city.stops])
    tours = [[stops[name] for name in tour] for tour in book["tours"]]
    visited = [stop for stop in city.stops if stop.name not in book["dropped"]]
    simple_plan = by_nearest_neighbour(city.base, visited, city.agents)
    shapes = [f'<path class="untried" d="{projection.closed(city.base, tour)}"/>' for tour in simple_plan.tours]
    shapes += [f'<path class="a{nth}" d="{projection.closed(city.base, tour)}"/>' for nth, tour in enumerate(tours)]
    for agent, tour in enumerate(tours):
        for nth, stop in enumerate(tour, 1):
            shapes.append(
                projection.dot(stop, f"a{agent}", f"{stop.name}\nagent {agent + 1}, stop {nth} of {len(tour)}")
            )
    shapes += [projection.dot(stops[name], "dropped", f"{name}\ndropped by a user") for name in book["dropped"]]
    x, y = projection.to_px(city.base)
    shapes.append(f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" data-tip="{escape(city.base.name)}"/>')
    caption = f"<b>{escape(city.name)}</b> {len(tours)} agents, {len(visited)} stops, {book['km']:.1f} km"
    note = f'<span class="soft">nearest neighbour only: {simple_plan.km:.1f} km</span>'
    box = f'viewBox="0 0 {MAP_WIDTH:.0f} {MAP_HEIGHT:.0f}" role="img" aria-label="Tours in {escape(city.name)}"'
    svg = f"<svg {box}>{''.join(shapes)}{projection.scale()}</svg>"
    return f"<figure>{svg}<figcaption>{caption}{note}</figcaption></figure>\n"


class _Projection:
    """Maps stops to pixels: north is up, and a kilometre has the same length in both directions."""

    def __init__(self, stops: list[Stop]) -> None:
        self._longitude_factor = cos(radians(sum(stop.latitude for stop in stops) / len(stops)))
        xs, ys = zip(*(self._km(stop) for stop in stops), strict=True)
        wide, high = MAP_WIDTH - 2 * MARGIN, MAP_HEIGHT - 2 * MARGIN
        self.px_per_km = min(wide / (max(xs) - min(xs)), high / (max(ys) - min(ys)))
        self._middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2

    def _km(self, stop: Stop) -> tuple[float, float]:
        return stop.longitude * self._longitude_factor * KM_PER_DEGREE, stop.latitude * KM_PER_DEGREE

    def to_px(self, stop: Stop) -> tuple[float, float]:
        (x, y), (middle_x, middle_y) = self._km(stop), self._middle
        return MAP_WIDTH / 2 + (x - middle_x) * self.px_per_km, MAP_HEIGHT / 2 - (y - middle_y) * self.px_per_km

    def closed(self, base: Stop, tour: list[Stop]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*self.to_px(stop)) for stop in [base, *tour]) + "Z"

    def dot(self, stop: Stop, classes: str, tip: str) -> str:
        x, y = self.to_px(stop)
        return f'<circle class="{classes}" cx="{x:.1f}" cy="{y:.1f}" r="4" data-tip="{escape(tip)}"/>'

    def scale(self) -> str:
        km = next(km for km in (5, 2, 1, 0.5, 0.2) if km * self.px_per_km <= MAP_WIDTH / 4)
        right, y = MAP_WIDTH - MARGIN, MAP_HEIGHT - 8
        left = right - km * self.px_per_km
        line = f'<path class="scale" d="M{left:.1f} {y - 4}v4H{right:.1f}v-4"/>'
        return f'{line}<text x="{left - 5:.1f}" y="{y}" text-anchor="end">{km:g} km</text>'
