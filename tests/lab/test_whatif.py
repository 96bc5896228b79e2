"""`compare_waits` uses one engine for both schedules, and the plot shows both."""

import xml.etree.ElementTree as ElementTree

import pytest

from celery_affinity.lab import plot, replay
from celery_affinity.lab.changes import Changes

from ..support.lab_scenarios import S, job, scenario, worker

BUSY = scenario(worker("w", "pdf", "xls"), *(job(nth, nth / 2, type_=("pdf", "xls")[nth % 2]) for nth in range(20)))


def compared(changes, engine="auto"):
    return replay.compare_waits(*replay.schedule_both(BUSY, changes, engine))


def test_additional_worker_shortens_waits():
    found = compared(Changes(add=[(("pdf",), 1)]))
    assert found.engine == "twin"
    assert found.after.all.mean_s < found.before.all.mean_s
    assert all(gain.mean_s > 0 and not gain.longer for gain in found.gains)
    assert [each.slots for each in found.after.slots] == [1, 1]


def test_higher_priority_of_a_type_lengthens_other_waits():
    found = compared(Changes(priorities={"pdf": 9}))
    assert [(each.type, each.mean_s > 0) for each in found.gains] == [("pdf", True), ("xls", False)]


def test_limit_0_of_a_type_prevents_its_claims():
    found = compared(Changes(settings={"limits": "type%3Apdf=0"}))
    assert (found.after.types["pdf"].unclaimed, found.before.types["pdf"].unclaimed) == (10, 0)


def test_change_unsupported_by_the_fast_engine_selects_the_exact_one():
    assert compared(Changes(settings={"reserve": "pdf:queued=1"})).engine == "judge"


def test_no_change_has_no_gain():
    found = compared(Changes())
    assert found.before == found.after
    assert {(gain.mean_s, gain.shorter, gain.longer) for gain in found.gains} == {(0.0, 0, 0)}


def heights(svg):
    root = ElementTree.fromstring(svg)
    paths = {
        path.get("class"): path.get("d")
        for path in root.iter("{http://www.w3.org/2000/svg}path")
        if "L" in path.get("d", "") and len(path.get("d")) > 100
    }
    return {name: [float(point.split(",")[1]) for point in d[1:].split("L")] for name, d in paths.items()}


def test_plot_has_a_rising_curve_per_schedule():
    found = heights(plot.waits_svg([0, 1 * S, 2 * S, None], [0, 0, 0, 0], "a < b"))
    assert found.keys() == {"before", "after"}
    for curve in found.values():
        assert curve == sorted(curve, reverse=True)
    top = min(found["after"])
    assert {*found["after"]} == {top}, "all have started immediately"
    assert min(found["before"]) > top, "one never started"
    assert found["before"][0] > found["before"][-1]


@pytest.mark.parametrize("waits", [[], [None], [0], [10**13]])
def test_plot_accepts_any_waits(waits):
    assert "prefers-color-scheme: dark" in plot.waits_svg(waits, waits, "any")
    assert heights(plot.waits_svg(waits, waits, "any")).keys() == {"before", "after"}
