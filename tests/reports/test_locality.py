"""Who holds the hint of a waiting job: `explain`, the worker's hints, and the metrics of hits."""

import pytest
from click import unstyle

from celery_affinity.cli import explain_text
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports.explain import explain
from celery_affinity.reports.jobs import hints_of
from celery_affinity.reports.status import Report
from celery_affinity.schema.keys import Keys

from ..support.clocked import ClockedReader
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("gpu", "pdf", settings={"locality_bonus": 80})
    return fleet


def near_line(fleet, task):
    lines = unstyle(explain_text.explanation_text(explain(ClockedReader(fleet.scheduler), task))).splitlines()
    return next(line.removeprefix("near").strip() for line in lines if line.startswith("near"))


def test_explain_says_which_workers_hold_the_hint_of_a_waiting_job(fleet):
    fleet.publish("cold~", "pdf", rules="near=model%3A7")
    (claim,) = fleet.inbox("gpu")
    fleet.publish("waits~", "pdf", rules="near=model%3A7")
    assert near_line(fleet, "task-waits~") == "no worker holds the hint 'model:7'"
    fleet.scheduler.advance(1)
    (following,) = fleet.end("gpu", claim)
    fleet.scheduler.advance(12)
    fleet.publish("again~", "pdf", rules="near=model%3A7")
    assert near_line(fleet, "task-again~") == "gpu@host (12.0 s ago), busy; bonus 80.0 there"
    assert explain(ClockedReader(fleet.scheduler), "task-again~").hint == "model:7"
    assert [*hints_of(fleet.scheduler.reader, "gpu")] == ["model:7"]
    fleet.end("gpu", following)
    counters = Report(fleet.scheduler.reader).status().counters
    assert (counters["locality_hits"], counters["locality_misses"]) == (1, 1)
