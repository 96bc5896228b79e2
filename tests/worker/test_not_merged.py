"""Calls that a `fold` refuses, on real workers: they are the next run, and each caller gets the end of its own run."""

import pytest

from celery_affinity.reports.explain import explain

from ..support.merging import SOON_S
from ..support.processes import wait_until


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_calls_from_the_first_refused_one_are_next_run(merging, pool):
    results = [merging.task("overlaps").delay("HH", [n]) for n in (0, 1, 5, 6, 9)]
    two = [merging.task("overlaps").delay("B", [n]) for n in (0, 2)]
    merging.start(pool)
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1], [0, 1], [5, 6], [5, 6], [9]]
    assert [each.get(timeout=SOON_S) for each in two] == [[0], [2]]
    assert sorted(merging.runs("overlaps")) == [["B", [0]], ["B", [2]], ["HH", [0, 1]], ["HH", [5, 6]], ["HH", [9]]]
    merging.leaves_nothing()


def test_earlier_calls_that_do_not_fit_run_next(merging):
    overlaps, reader = merging.task("overlaps"), merging.scheduler.reader
    early = [overlaps.apply_async(("HH", [n]), countdown=0.2) for n in (0, 1)]
    own, *others = [overlaps.delay("HH", [n]) for n in (5, 6, 9)]
    everyone = [*early, own, *others]
    wait_until(
        lambda: merging.scheduler.tick() and explain(reader, early[1].id).calls == 5, SOON_S, "they wait together"
    )
    merging.start()
    merging.go()
    assert [each.get(timeout=SOON_S) for each in everyone] == [[0, 1], [0, 1], [5, 6], [5, 6], [9]]
    assert sorted(merging.runs("overlaps")) == [["HH", [0, 1]], ["HH", [5, 6]], ["HH", [9]]]
    merging.leaves_nothing()


def test_worker_killed_after_splitting_calls_off_loses_none(merging):
    results = [merging.task("overlaps_late").delay("HH", [n]) for n in (0, 1, 5, 6)]
    worker = merging.start("threads", concurrency=1)
    merging.go()
    wait_until(lambda: merging.runs("overlaps_late"), SOON_S, "it runs")
    reader = merging.scheduler.reader
    states = [explain(reader, each.id).state for each in results]
    assert states == ["running", "running", "pending", "pending"]
    worker.kill()
    merging.start("threads")
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1], [0, 1], [5, 6], [5, 6]]
    assert sorted(merging.runs("overlaps_late")) == [["HH", [0, 1]], ["HH", [0, 1]], ["HH", [5, 6]]]
    merging.leaves_nothing()
