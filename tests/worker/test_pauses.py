"""Pauses on real workers: unstarted jobs are returned uncounted, and running jobs continue."""

import json
import signal

import psutil
import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time
from ..support.processes import wait_until


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


def waiting(fleet):
    return {each.type: each.pending for each in fleet.report.status().types}


def deliveries(fleet):
    jobs = fleet.redis.scan_iter(Keys().key("job", "*"))
    return {int(fleet.redis.hget(job, "deliveries") or 0) for job in jobs}


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
@pytest.mark.parametrize("what", ["type:pdf", "*"])
def test_paused_jobs_unread_in_an_inbox_are_requeued(fleet, scheduler, pool, what):
    worker = fleet.start("worker", "pdf", "excel", pool=pool, concurrency=4)
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, 5, "it stands still")
    for client in fleet.redis.client_list():
        if "b" in client["flags"]:  # its wait would take the first job out of the inbox
            fleet.redis.client_unblock(int(client["id"]))
    for number in range(3):
        fleet.tasks["pdf"].delay(f"pdf-{number}")
    fleet.tasks["excel"].delay("excel")
    assert fleet.free_slots() == 0
    scheduler.pause(what)
    worker.signal(signal.SIGCONT)
    goes_on = {"excel"} if what == "type:pdf" else set()
    wait_until(lambda: waiting(fleet)["pdf"] == 3, 10, "they go back")
    wait_until(lambda: fleet.free_slots() == 4, 10, "the slots are free for others")
    assert set(fleet.ledger.starts()) == goes_on
    assert deliveries(fleet) == {0}
    scheduler.resume(what)
    wait_until(lambda: len(fleet.ledger.starts()) == 4, 10, "all run")
    assert set(fleet.ledger.starts().values()) == {1}


def test_paused_prefetched_jobs_are_requeued_and_running_job_continues(fleet, scheduler):
    for number in range(12):
        fleet.tasks["late"].delay(f"before-{number}", 0)
    fleet.tasks["late"].delay("long", 4)
    for number in range(5):
        fleet.tasks["late"].delay(f"behind-{number}", 0)
    fleet.start("holder", "pdf", pool="prefork", CONF=json.dumps({"affinity_lookahead": 8}))
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    assert waiting(fleet)["pdf"] < 5, "some are held ahead"
    scheduler.pause("type:pdf")
    wait_until(lambda: waiting(fleet)["pdf"] == 5, 3, "those ahead go back")
    wait_until(fleet.all_slots_are_free, 10, "the long one ends")
    assert waiting(fleet)["pdf"] == 5
    scheduler.resume("type:pdf")
    wait_until(lambda: len(fleet.ledger.starts()) == 18, 10, "all run")
    assert set(fleet.ledger.starts().values()) == {1}


def test_paused_rate_limited_job_is_requeued_with_its_token(fleet, scheduler):
    fleet.start("worker", "mail", "pdf", pool="threads", concurrency=2, RATE_LIMIT="1/s")
    for number in range(4):
        fleet.tasks["mail"].delay(f"mail-{number}")
    wait_until(lambda: fleet.ledger.starts()["mail-0"], 10, "the first one runs")
    scheduler.pause("type:mail")
    ran = len(fleet.ledger.starts())
    wait_until(lambda: waiting(fleet)["mail"] == 4 - ran, 10, "the others go back")
    assert len(fleet.ledger.starts()) == ran
    scheduler.resume("type:mail")
    wait_until(lambda: len(fleet.ledger.starts()) == 4, 15, "all run")
    assert set(fleet.ledger.starts().values()) == {1}
