"""What if: both schedules are of one engine, and the plot shows both."""

import xml.etree.ElementTree as ElementTree

import pytest

from celery_affinity.lab import plot, replay
from celery_affinity.lab.changes import Changes

from ..support.lab_scenarios import S, job, scenario, worker

BUSY = scenario(worker("w", "pdf", "xls"), *(job(nth, nth / 2, type_=("pdf", "xls")[nth % 2]) for nth in range(20)))


def asked(changes, engine="auto"):
    return replay.compare_waits(*replay.schedule_both(BUSY, changes, engine))


def test_a_further_worker_has_jobs_wait_less():
    found = asked(Changes(add=[(("pdf",), 1)]))
    assert found.engine == "twin"
    assert found.after.all.mean_s < found.before.all.mean_s
    assert all(gain.mean_s > 0 and not gain.longer for gain in found.gains)
    assert [each.slots for each in found.after.slots] == [1, 1]


def test_a_higher_priority_of_some_is_a_longer_wait_of_others():
    found = asked(Changes(priorities={"pdf": 9}))
    assert [(each.type, each.mean_s > 0) for each in found.gains] == [("pdf", True), ("xls", False)]


def test_a_limit_of_one_type_is_a_longer_wait_of_it():
    found = asked(Changes(settings={"limits": "type%3Apdf=0"}))
    assert (found.after.types["pdf"].unclaimed, found.before.types["pdf"].unclaimed) == (10, 0)


def test_a_change_that_the_twin_does_not_know_has_the_judge_schedule_both():
    assert asked(Changes(settings={"reserve": "pdf:queued=1"})).engine == "judge"


def test_no_change_is_no_gain():
    found = asked(Changes())
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


def test_the_plot_has_a_rising_curve_of_each_schedule():
    found = heights(plot.waits_svg([0, 1 * S, 2 * S, None], [0, 0, 0, 0], "a < b"))
    assert found.keys() == {"before", "after"}
    for curve in found.values():
        assert curve == sorted(curve, reverse=True)
    top = min(found["after"])
    assert {*found["after"]} == {top}, "all have started at once"
    assert min(found["before"]) > top, "one never started"
    assert found["before"][0] > found["before"][-1]


@pytest.mark.parametrize("waits", [[], [None], [0], [10**13]])
def test_the_plot_of_any_waits_is_one(waits):
    assert "prefers-color-scheme: dark" in plot.waits_svg(waits, waits, "any")
    assert heights(plot.waits_svg(waits, waits, "any")).keys() == {"before", "after"}
