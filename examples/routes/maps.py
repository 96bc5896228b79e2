"""Draws the tours of each city as a map."""

from html import escape
from math import cos, radians
from string import Template

from examples.comparing import page
from examples.routes import report
from examples.routes.cities import City, Stop, all_cities
from examples.routes.measure import Run
from examples.routes.planner import by_nearest_neighbour

MAPS = Template("""<section id="maps"><header><h2>The tours in the end</h2>
<span class="soft">one colour for each agent; a square is the base; hollow: a stop that a user has dropped</span>
<label class="choice"><input type="checkbox" id="untried"> with nearest neighbour alone</label></header>
<div class="maps">$maps</div></section>
""")

MAP_WIDTH, MAP_HEIGHT, MARGIN = 360.0, 270.0, 16.0
KM_OF_A_DEGREE = 111.195


def section(run: Run) -> str:
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
