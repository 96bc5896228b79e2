"""Reserves on real workers: a versatile slot with and without a reserve, as in the docs."""

import json

import pytest

from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.processes import wait_until

#: Max seconds until a job with a free slot starts, on a slow machine.
AT_ONCE_S = 20

#: Duration of a video in seconds: far longer than the whole test.
VIDEO_S = 300


def running(fleet):
    return {entry.job for entry in fleet.ledger.entries() if entry.event == "start"}


def blocks(fleet, result):
    waiting = explain(Reader(fleet.redis, Keys()), result.id).waiting
    return [] if waiting is None else [each.rule for each in waiting.blocked_by]


@pytest.mark.parametrize("has_reserve", [True, False])
def test_reserve_keeps_a_versatile_slot_for_on_demand_jobs(fleet, has_reserve):
    reserve = {"affinity_reserve": {"pdf": {"queued": 1}}} if has_reserve else {}
    conf = json.dumps({"worker_send_task_events": False, **reserve})
    fleet.start("videos", "pdf", pool="threads", concurrency=2, CONF=conf)
    fleet.start("versatile", "pdf", "excel", pool="threads", CONF=conf)
    videos = [fleet.tasks["pdf"].apply_async((f"video{number}", VIDEO_S)) for number in range(6)]
    slots = 2 if has_reserve else 3
    wait_until(lambda: len(running(fleet)) == slots, AT_ONCE_S, f"{slots} videos run: {running(fleet)}")
    assert blocks(fleet, videos[-1]) == (["reserve"] if has_reserve else ["slots"])

    report = fleet.tasks["excel"].apply_async(("report", 0), on_demand=True)
    if has_reserve:
        wait_until(lambda: "report" in running(fleet), AT_ONCE_S, f"the report starts: {running(fleet)}")
        assert report.get(timeout=AT_ONCE_S) == "report"
    else:
        wait_until(lambda: blocks(fleet, report) == ["slots"], AT_ONCE_S, "the report waits for the versatile slot")
    assert len(running(fleet) - {"report"}) == slots
