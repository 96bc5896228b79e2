"""The planner of `examples/routes`, and the stops that it is given."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.routes import planner
from examples.routes.cities import STOPS, City, Stop, all_cities, distance_km

BASE = Stop("base", 53.55, 10.0)

degrees = st.floats(-0.1, 0.1, allow_nan=False)
places = st.lists(st.tuples(degrees, degrees), max_size=9, unique=True)


def stops_at(places):
    return [Stop(str(nth), BASE.latitude + y, BASE.longitude + x) for nth, (y, x) in enumerate(places)]


# -- the planner


@settings(deadline=None, max_examples=30)
@given(places=places, agents=st.integers(1, 4))
def test_a_plan_visits_every_stop_once(places, agents):
    stops = stops_at(places)
    plan = planner.plan(BASE, stops, agents)
    assert sorted(stop for tour in plan.tours for stop in tour) == sorted(stops)
    assert len(plan.tours) == min(agents, len(stops))
    assert all(plan.tours)


@settings(deadline=None, max_examples=30)
@given(places=places, agents=st.integers(1, 4))
def test_a_plan_is_as_long_as_its_tours_and_no_longer_than_nearest_neighbour(places, agents):
    stops = stops_at(places)
    plan, untried = planner.plan(BASE, stops, agents), planner.by_nearest_neighbour(BASE, stops, agents)
    assert sorted(stop for tour in untried.tours for stop in tour) == sorted(stops)
    for each in (plan, untried):
        legs = [(a, b) for tour in each.tours for a, b in zip([BASE, *tour], [*tour, BASE], strict=True)]
        assert each.km == pytest.approx(sum(distance_km(a, b) for a, b in legs))
    assert plan.km <= untried.km + 1e-6


@settings(deadline=None)
@given(places=places.filter(bool), shuffled=st.randoms())
def test_2_opt_never_lengthens_a_tour_and_leaves_no_exchange_that_pays(places, shuffled):
    table = planner.distances([BASE, *stops_at(places)])
    order = list(range(len(table)))
    shuffled.shuffle(order)
    better = planner.two_opt(table, tuple(order))
    assert sorted(better) == sorted(order)
    assert planner.length(table, better) <= planner.length(table, order) + 1e-9
    for i in range(len(better)):
        for j in range(i + 2, len(better) + 1):
            turned = better[:i] + better[i:j][::-1] + better[j:]
            assert planner.length(table, turned) >= planner.length(table, better) - 1e-6


def test_agents_have_sectors_of_about_the_same_size():
    for city in all_cities().values():
        sizes = [len(tour) for tour in planner.plan(city.base, city.stops, city.agents).tours]
        equal = len(city.stops) / city.agents
        assert all(abs(size - equal) < planner.MAX_DIFFERENCE + 1 for size in sizes), city.name


def test_2_opt_takes_out_a_crossing():
    corners = [Stop("a", 53.5, 9.9), Stop("b", 53.6, 10.1), Stop("c", 53.6, 9.9), Stop("d", 53.5, 10.1)]
    table = planner.distances(corners)
    assert planner.length(table, planner.two_opt(table, (0, 1, 2, 3))) < planner.length(table, (0, 1, 2, 3))


def test_a_degree_of_latitude_is_111_km():
    assert distance_km(Stop("", 53.0, 10.0), Stop("", 54.0, 10.0)) == pytest.approx(111.195, abs=0.01)
    assert distance_km(Stop("", 60.0, 10.0), Stop("", 60.0, 11.0)) == pytest.approx(111.195 / 2, rel=1e-3)


# -- the stops


@pytest.fixture(params=all_cities().values(), ids=lambda city: city.name)
def city(request) -> City:
    return request.param


#: Where the middle of each city is, known from elsewhere: a whole column that slipped would be seen.
CENTRES = {
    "Hamburg": (53.55, 9.99),
    "Bremen": (53.08, 8.81),
    "Hannover": (52.37, 9.73),
    "Kiel": (54.32, 10.14),
    "Lübeck": (53.87, 10.69),
}


def test_the_stops_of_a_city_lie_within_a_few_km_of_its_centre(city):
    centre = Stop("centre", *CENTRES[city.name])
    assert distance_km(centre, city.base) < 2
    far = {stop.name: round(distance_km(centre, stop), 1) for stop in city.stops if distance_km(centre, stop) > 8}
    assert not far


def test_the_names_and_the_places_of_a_city_are_unique(city):
    stops = [city.base, *city.stops]
    assert 25 <= len(stops) <= 40
    assert len({stop.name for stop in stops}) == len(stops)
    for nth, stop in enumerate(stops):
        assert [other.name for other in stops[:nth] if distance_km(stop, other) < 0.03] == []


def test_coordinates_say_no_more_than_is_known():
    for line in Path(STOPS).read_text(encoding="utf-8").splitlines()[1:]:
        for figure in line.split(",")[2:]:
            assert len(figure.partition(".")[2]) <= 4, line
