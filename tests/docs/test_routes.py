"""`python -m examples.routes`, run as a user runs it, with a small share of its work."""

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest
from rich.console import Console

from examples.routes import __main__ as program
from examples.routes import merging, report, sides, work
from examples.routes.cities import all_cities
from examples.routes.measure import MERGED, SLOTS, WORKERS, Run
from examples.routes.planner import distances, length
from examples.routes.sides import COMPARED, SIDES, WORK

from ..support.made_once import made_once
from ..support.processes import ROOT

#: Four fleets, one after the other: a minute of work. The example's rules, merging and planner have tests of their own.
pytestmark = pytest.mark.slow

FLOODED = sorted(set(all_cities()) - {work.AT_REST})


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    """Return the printed text of one run of the example, and the folder of its results."""
    folder = made_once(tmp_path_factory, "routes", _run)
    return (folder / "printed").read_text(), folder


def _run(folder):
    env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"} | {"COLUMNS": "120"}
    command = [sys.executable, "-m", "examples.routes", "--out", str(folder), "--seconds", "0.1"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "printed").write_text(done.stdout)


def run_of(routes, side):
    run = Run(side, routes[1] / side)
    run.follow()
    return run


@pytest.fixture(scope="module", params=COMPARED)
def side(request, routes):
    return run_of(routes, request.param)


@pytest.fixture(scope="module")
def ours(routes):
    return run_of(routes, "affinity")


def cells(text, first):
    """Return the numbers of the table's row that begins with this cell."""
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if "│" in line]
    [found] = [row for row in rows if row[0] == first]
    return found[1:]


# -- what the rules are for


@pytest.mark.parametrize("name", ["affinity", "lock", MERGED])
def test_no_two_runs_of_a_city_overlap(routes, name):
    run = run_of(routes, name)
    for city in all_cities():
        for one, other in combinations(run.of_city(city), 2):
            assert one.planned <= other.began or other.planned <= one.began, (city, one.about, other.about)
    assert run.overlapping() == set()


def test_users_change_runs_before_the_flood_of_its_city(ours):
    in_time = []
    for user in ours.select(mode="on_demand"):
        behind = [job.began for job in ours.select(user.type, "queued") if job.began > user.published]
        if len(behind) > 2:  # some of the flood was still waiting when the user's change was published
            in_time.append(user)
            assert user.began < max(behind), user.about
    assert {user.type for user in in_time} == set(FLOODED)


def test_flood_leaves_one_slot_free(ours):
    flood = ours.select(mode="queued")
    most = max(sum(other.started <= job.started < other.planned for other in flood) for job in flood)
    assert most < SLOTS * len(WORKERS)


def test_every_change_is_in_the_book_of_its_city(routes, ours):
    requests = work.load(ours.folder / WORK)
    for city in all_cities():
        changes = [request.change for request in requests if request.city == city]
        book = ours.book(city)
        assert book["changes"] == sorted(change["number"] for change in changes)
        dropped = set()
        for change in changes:  # users and the flood change different stops, so their order does not matter
            (dropped.discard if change["is_wanted"] else dropped.add)(change["stop"])
        assert book["dropped"] == sorted(dropped)
    assert ours.missing() == []


def test_plans_visit_every_wanted_stop_once(ours):
    for city in all_cities().values():
        book = ours.book(city.name)
        visited = sorted(name for tour in book["tours"] for name in tour)
        assert visited == sorted({stop.name for stop in city.stops} - set(book["dropped"]))
        stops = {stop.name: stop for stop in city.stops}
        tours = [[city.base, *(stops[name] for name in tour)] for tour in book["tours"]]
        km = sum(length(distances(tour), range(len(tour))) for tour in tours)
        assert book["km"] == pytest.approx(km)


# -- the comparison


def test_all_sides_complete_the_same_work(routes, side):
    assert (side.folder / WORK).read_bytes() == (routes[1] / "affinity" / WORK).read_bytes()
    asked = sorted((request.city, request.mode) for request in work.load(side.folder / WORK))
    assert sorted((job.type, job.mode) for job in side.jobs.values()) == asked
    assert {job.state for job in side.jobs.values()} == {"SUCCESS"}
    assert {job.worker for job in side.jobs.values()} == set(WORKERS)


def test_an_overlap_and_a_lost_change_are_found(ours, tmp_path):
    """The example's table has 0 here, so the test changes the records: two overlapping runs, and a lost change."""
    run = Run("affinity", ours.folder)
    run.follow()
    first, second = run.of_city("Hamburg")[:2]
    second.began = (first.began + first.planned) / 2
    first.changes = [100000]
    assert run.overlapping() == {second.id}
    assert run.missing() == [first]


def test_report_warns_of_other_load_on_the_computer(ours):
    run = Run("affinity", ours.folder)
    run.follow()
    for job in run.jobs.values():
        job.cpu_s = job.planned - job.began
    assert run.slowdown() == pytest.approx(1)
    assert not any("Unequal load" in sentence for sentence in report.sentences([run]))
    for job in run.jobs.values():
        job.cpu_s /= 20
    assert "Unequal load: planning took 20.0 times its CPU time" in report.sentences([run])[-1]


def test_tables_show_the_measured_values(routes, side):
    text, _ = routes
    column = COMPARED.index(side.side)
    assert cells(text, "runs that overlap another run of their city")[column] == str(len(side.overlapping()))
    assert cells(text, "changes missing in the final plans")[column] == str(len(side.missing()))
    assert cells(text, "all done after, s")[column] == f"{side.took_s:.1f}"


def test_merging_table_shows_the_measured_values(routes, ours):
    merged = run_of(routes, MERGED)
    both = (ours, merged)
    assert cells(routes[0], "changes") == [str(len(run.change_calls())) for run in both]
    assert cells(routes[0], "runs that planned a city") == [str(len(merging.runs_of(run))) for run in both]
    seconds = [float(cell) for cell in cells(routes[0], "CPU seconds of planning")]
    assert seconds == pytest.approx([sum(job.cpu_s for job in merging.runs_of(run)) for run in both], abs=0.051)
    longest = [float(cell) for cell in cells(routes[0], "a change is in a plan after, longest, s")]
    assert longest == pytest.approx([run.plan_waits()[-1] for run in both], abs=0.051)
    *sentences, _ = merging.sentences(*both)
    for sentence in sentences:
        assert f"* {sentence}" in routes[0]
    [times] = re.findall(rf"{work.AT_REST} had no changes\. .* planned it (\d+) times", routes[0])
    assert int(times) >= sides.MIN_REPLANS


def test_example_fails_if_a_callers_plan_lacks_its_change(routes, tmp_path, monkeypatch):
    def run(console, side, *_):
        found = run_of(routes, side)
        if side == MERGED:
            found.change_calls()[0].is_in_plan = False
        return found

    monkeypatch.setattr(sides, "run", run)
    console = Console(record=True, width=120, highlight=False)
    assert program._compare(console, tmp_path, 0.1) == 1
    title = "celery_affinity, calls merged: callers that got no plan"
    red, _, plain = console.export_text(styles=True).rpartition(title)
    assert red.endswith("\x1b[31m")
    assert plain.startswith(" with their change: 1; the first is ")
    assert "got no plan with their change" in (tmp_path / "routes.html").read_text(encoding="utf-8")


def test_planned_tours_are_shorter_than_simple_ones(routes):
    for city in all_cities().values():
        runs, stops, agents, before, planned, _ = cells(routes[0], city.name)
        assert (int(runs) > 0, int(agents)) == (True, city.agents)
        assert int(stops) < len(city.stops), "users have dropped some"
        assert float(planned) < float(before)


# -- the page


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.sections, self.texts = [], [], [], []
        self.bars = self.dots = self.again = 0
        self.calls, self.lines = Counter(), set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("src", "href") if name in attrs]
        classes = attrs.get("class", "").split()
        self.bars += tag == "i" and "run" in classes and "again" not in classes
        self.again += tag == "i" and "again" in classes
        if tag == "i" and "call" in classes:
            self.calls[attrs["data-way"]] += 1
        if tag == "svg" and "lines" in classes:
            self.lines.add(attrs["data-way"])
        self.dots += tag == "circle"
        if tag == "section":
            self.sections.append(attrs.get("id"))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_self_contained_page_has_all_maps_and_runs(routes):
    text, out = routes
    [path] = re.findall(r"file://(\S+\.html)", text)
    assert Path(path) == (out / "routes.html").resolve()
    html = Path(path).read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.links == []
    assert "url(" not in html
    assert "@import" not in html
    assert page.sections == ["maps", *COMPARED, None, "merging", MERGED]
    for city in all_cities():
        assert page.texts.count(city) == 1 + 1 + len(SIDES), "its map, its row in the table, its lane on each side"
    assert page.dots == sum(len(city.stops) for city in all_cities().values())
    assert page.bars == sum(len(merging.runs_of(run_of(routes, name))) for name in SIDES)
    assert page.again > 0, "runs of the recurring call"
    calls = merging.calls_of(run_of(routes, MERGED))
    assert page.calls == {way[:8]: len(of_run) for way, of_run in calls.items()}
    assert page.lines == set(page.calls)
