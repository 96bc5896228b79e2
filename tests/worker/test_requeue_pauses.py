"""A requeued or aborted job pauses before its next run, runs after younger jobs, and has a limited number of runs."""

import json

import pytest

from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time
from ..support.processes import wait_until

#: Settings that keep the sum of a job's pauses below one second.
SHORT = {"affinity_requeue_delay_max": 0.02}

YOUNGER = [f"younger-{number}" for number in range(10)]


def start(fleet, pool="prefork", **conf):
    return fleet.start("worker", "pdf", pool=pool, heartbeat_s=1, CONF=json.dumps({**SHORT, **conf}))


def row_of(fleet, result):
    reader = Reader(fleet.redis, Keys())
    return reader.hash("job", explain(reader, result.id).job_id)


def started(fleet):
    return [entry.job for entry in fleet.ledger.entries() if entry.event == "start"]


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent"))
def test_task_that_requeues_itself_succeeds_in_run_24(fleet, pool):
    start(fleet, pool)
    result = fleet.tasks["not_yet"].delay("job", 24)
    assert result.get(timeout=30) == 24
    wait_until(fleet.all_slots_are_free, 20, "its slot is free")
    assert fleet.dead() == []
    row = row_of(fleet, result)
    assert (row["state"], row["requeues"], row.get("deliveries")) == ("done", "23", None)


@pytest.mark.parametrize("task", ["late_too_long", "lose_each_child"])
def test_aborted_job_restarts_after_younger_jobs(fleet, task):
    """A hard time limit or the death of the pool process aborts a run, and both count as a delivery."""
    result = fleet.tasks[task].delay("job")
    for job in YOUNGER:
        fleet.tasks["pdf"].delay(job)
    start(fleet, affinity_max_deliveries=2)
    wait_until(fleet.dead, 30, "a dead letter")
    assert started(fleet) == ["job", *YOUNGER, "job"]
    (letter,) = fleet.dead()
    assert (letter.task_id, letter.reason, letter.deliveries) == (result.id, "max_deliveries", 2)


@pytest.mark.parametrize("task", ["not_yet", "stop_unasked"])
@pytest.mark.parametrize("pool", in_time("threads", "prefork"))
def test_job_requeued_too_often_is_dead_lettered_with_reason(fleet, pool, task):
    start(fleet, pool, affinity_max_requeues=2, affinity_max_deliveries=1)
    result = fleet.tasks[task].apply_async(("job", 24) if task == "not_yet" else ("job",))
    with pytest.raises(Exception, match="affinity_max_requeues"):
        result.get(timeout=30)
    (letter,) = fleet.dead()
    assert (letter.reason, letter.deliveries) == ("max_requeues", 0)
    assert "Reject: run 3" in letter.why if task == "not_yet" else "affinity_max_requeues" in letter.why
    assert started(fleet) == ["job"] * 3


def test_dead_workers_job_restarts_before_younger_jobs(fleet):
    result = fleet.tasks["late"].delay("job", 60)
    worker = start(fleet)
    wait_until(lambda: started(fleet), 20, "it runs")
    for job in YOUNGER:
        fleet.tasks["pdf"].delay(job)
    worker.kill()
    fleet.start("other", "pdf", heartbeat_s=1)
    wait_until(lambda: len(started(fleet)) == 12, 30, "all run")
    assert started(fleet)[:2] == ["job", "job"]
    row = row_of(fleet, result)
    assert (row["deliveries"], row.get("rank"), row.get("pauses")) == ("1", None, None)
