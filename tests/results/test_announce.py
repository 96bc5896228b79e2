"""Callers receive ends without a worker as Celery states, signals and events."""

import json
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery, chord
from celery.exceptions import ChordError, Reject, TaskRevokedError
from celery.result import AsyncResult

from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import wait_for_state
from ..support.processes import Process, start_worker, wait_until


@pytest.fixture
def dispatcher(fleet):
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    process = Process("dispatcher", command, {"BROKER_URL": fleet.url, "LEDGER": str(fleet.ledger.path), "EVENTS": "1"})
    process.wait_for("dispatcher ready", 30)
    return process


def count_waiting(fleet):
    status = fleet.report.status()
    return sum(each.pending for each in status.types) + status.scheduled


@contextmanager
def collected_events(app):
    """Collect events in a thread for the time of the context."""
    events, ready, stop = [], threading.Event(), threading.Event()

    def listen():
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": events.append})
            with receiver.consumer_context() as (listening, *_):
                ready.set()
                while not stop.is_set():
                    with suppress(TimeoutError):
                        listening.drain_events(timeout=0.2)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield events
    finally:
        stop.set()
        thread.join(10)


# -- revoked


def test_revoked_jobs_leave_their_lane_immediately_without_a_worker(fleet):
    results = [fleet.tasks["pdf"].delay(f"job-{number}") for number in range(3)]
    results.append(fleet.tasks["pdf"].apply_async(("scheduled",), countdown=600))
    kept = fleet.tasks["pdf"].delay("kept")
    results[0].revoke()
    assert count_waiting(fleet) == 4
    fleet.app.control.revoke([result.id for result in results[1:]])
    assert count_waiting(fleet) == 1
    fleet.start("other", "index", pool="solo")
    for result in results:
        wait_for_state(result, "REVOKED")
        with pytest.raises(TaskRevokedError):
            result.get(timeout=1)
    fleet.start("worker", "pdf", pool="solo")
    assert kept.get(timeout=10) == "kept"
    assert fleet.ledger.starts() == {"kept": 1}


def test_call_revoked_before_publish_ends_when_published(fleet):
    fleet.start("worker", "pdf", pool="solo")
    fleet.app.control.revoke("known-by-its-id")
    result = fleet.tasks["pdf"].apply_async(("job",), task_id="known-by-its-id")
    assert count_waiting(fleet) == 0
    wait_for_state(result, "REVOKED")
    assert fleet.tasks["pdf"].delay("next").get(timeout=10) == "next"
    assert fleet.ledger.starts() == {"next": 1}


def test_revoke_by_stamp_ends_all_stamped_jobs(fleet, dispatcher):
    def stamped(job, tenant):
        signature = fleet.tasks["pdf"].s(job)
        signature.stamp(tenant=tenant)
        return signature.apply_async()

    ours = [stamped(f"job-{number}", "a b") for number in range(12)]
    theirs = stamped("theirs", "c")
    fleet.app.control.revoke_by_stamped_headers({"tenant": ["a b"]})
    assert count_waiting(fleet) == 1
    for result in ours:
        wait_for_state(result, "REVOKED")
    fleet.start("worker", "pdf", pool="solo").wait_ready(30)
    assert theirs.get(timeout=10) == "theirs"
    assert fleet.ledger.starts() == {"theirs": 1}


def test_workers_refuse_calls_with_a_stamp_revoked_earlier(fleet):
    worker = fleet.start("worker", "pdf", pool="solo")
    worker.wait_ready(30)
    fleet.app.control.revoke_by_stamped_headers({"tenant": ["a b"]}, reply=True)
    signature = fleet.tasks["pdf"].s("later")
    signature.stamp(tenant="a b")
    wait_for_state(signature.apply_async(), "REVOKED")
    worker.end()
    fleet.start("newcomer", "pdf", pool="solo")
    assert signature.apply_async().get(timeout=10) == "later", "like stock Celery: it did not receive the revoke"


def test_revoke_for_some_workers_keeps_waiting_jobs(fleet):
    result = fleet.tasks["pdf"].delay("job")
    fleet.app.control.revoke(result.id, destination=["other@host"])
    fleet.start("worker", "pdf", pool="solo")
    assert result.get(timeout=10) == "job"


def test_revoke_from_stock_celery_ends_waiting_jobs(fleet):
    fleet.start("other", "mail", pool="threads").wait_ready(30)
    stays, goes = (fleet.tasks["pdf"].delay(name) for name in ("stays", "goes"))
    with Celery("stock", broker=fleet.url, set_as_current=False) as stock:
        (other,) = wait_until(stock.control.inspect().ping, 20, "the worker answers")
        stock.control.revoke(stays.id, destination=[other])
        stock.control.revoke(goes.id)
    wait_for_state(goes, "REVOKED")
    assert count_waiting(fleet) == 1


def test_revoked_job_does_not_rerun_when_its_worker_dies(fleet):
    worker = fleet.start("killed", "pdf", pool="threads")
    result = fleet.tasks["late"].delay("job", 60)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    result.revoke()
    worker.kill()
    fleet.start("next", "pdf", pool="solo")
    wait_for_state(result, "REVOKED")
    assert fleet.ledger.starts() == {"job": 1}


# -- expired


def test_waiting_job_ends_when_it_expires(fleet, dispatcher):
    with collected_events(fleet.app) as events:
        waiting = fleet.tasks["pdf"].apply_async(("waiting",), expires=1)
        scheduled = fleet.tasks["pdf"].apply_async(("scheduled",), expires=1, countdown=600)
        late = fleet.tasks["pdf"].apply_async(("late",), expires=-1)
        assert count_waiting(fleet) == 2
        for result in (waiting, scheduled, late):
            wait_for_state(result, "REVOKED")
        assert count_waiting(fleet) == 0
        wait_until(lambda: len([each for each in events if each["type"] == "task-revoked"]) == 3, 10, f"not {events}")
    assert {(each["uuid"], each["expired"]) for each in events if each["type"] == "task-revoked"} == {
        (result.id, True) for result in (waiting, scheduled, late)
    }
    keys = [Keys().key(name) for name in ("expires", "unreported", "scheduled", "heads")]
    wait_until(lambda: not fleet.redis.exists(*keys), 10, "their keys are deleted")


# -- chords


def test_chord_fails_when_a_waiting_part_is_revoked(fleet, dispatcher):
    fleet.start("worker", "index", pool="solo")
    parts = [fleet.tasks["index"].s("part"), fleet.tasks["pdf"].s("never").set(expires=1)]
    result = chord(parts)(fleet.tasks["index"].s())
    with pytest.raises((ChordError, TaskRevokedError)):
        result.get(timeout=20)


# -- lost, and given up


def test_caller_gets_the_error_of_a_lost_job(fleet):
    worker = fleet.start("killed", "pdf", pool="threads")
    result = fleet.tasks["early"].delay("an-argument", 60)
    wait_until(lambda: fleet.acked() == 1, 10, "it runs, and is acked")
    worker.kill()
    other = fleet.start("other", "index", pool="solo")
    with pytest.raises(WorkerLostError, match="had been acknowledged"):
        result.get(timeout=15)
    (letter,) = fleet.dead()
    assert (letter.task_id, letter.reason, letter.replayable) == (result.id, "lost", True)
    assert "an-argument" not in worker.log() + other.log(), "no arguments at INFO"


def test_caller_gets_the_error_of_a_job_requeued_too_often(fleet):
    result = fleet.tasks["reject"].delay("job", requeue=True, for_ever=True)
    conf = {"affinity_max_requeues": 2, "affinity_requeue_delay_max": 0}
    start_worker(APP, fleet.url, ["pdf"], pool="solo", env={"LEDGER": str(fleet.ledger.path), "CONF": json.dumps(conf)})
    with pytest.raises(Reject, match="Given up: the task requeued it more often than affinity_max_requeues allows"):
        result.get(timeout=20)
    assert fleet.ledger.starts()["job"] == 3


# -- apps that report


def test_app_without_the_task_leaves_its_report_to_others(fleet, dispatcher):
    foreign = "tests.support.apps.ordinary"
    other = start_worker(foreign, fleet.url, ["nothing"], pool="solo")
    other.wait_ready(30)
    results = [fleet.tasks["pdf"].apply_async((f"job-{number}",), expires=0.1) for number in range(6)]
    for result in results:
        wait_for_state(result, "REVOKED")
    assert "reported to its caller" not in other.log()


def test_caller_gets_the_end_of_a_task_no_app_defines(fleet, dispatcher):
    published = fleet.app.send_task("no.such.task", queue="nobody", expires=0.1)
    result = AsyncResult(published.id, app=fleet.app)
    wait_for_state(result, "REVOKED", within_s=40)  # apps that define the task have 15 s to report first
