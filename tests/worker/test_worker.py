"""Real workers in their own processes, killed with ``kill -9``."""

import signal
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from billiard.exceptions import WorkerLostError
from celery.worker import state

from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker.event_loop import CeleryWorkerLoop

from ..support import since
from ..support.fleet import in_time
from ..support.members import reporting_of
from ..support.processes import wait_until

POOLS = ("prefork", "threads", "solo")


def test_specialists_jobs_avoid_the_versatile_worker(fleet):
    specialists = {type_: fleet.start(type_, type_, pool="solo") for type_ in ("pdf", "excel")}
    versatile = fleet.start("versatile", "pdf", "excel", "index", pool="solo")
    for turn in range(20):
        for type_ in ("pdf", "excel"):
            fleet.tasks[type_].delay(f"{type_}-{turn}").get(timeout=10)
            wait_until(fleet.all_slots_are_free, 10, "the slot is free again")
    for turn in range(20):
        for type_, specialist in specialists.items():
            assert fleet.ran_on(f"{type_}-{turn}") == [specialist.pid]
    fleet.tasks["index"].delay("rare").get(timeout=10)
    assert fleet.ran_on("rare") == [versatile.pid]


def test_rare_job_starts_while_the_specialists_are_busy(fleet):
    fleet.start("pdf", "pdf", pool="solo")
    fleet.start("versatile", "pdf", "index", pool="solo")
    long = fleet.tasks["pdf"].delay("long", 5)
    wait_until(lambda: fleet.ledger.starts()["long"], 10, "it starts")
    fleet.tasks["index"].delay("rare").get(timeout=4)
    assert not long.ready(), "the rare job did not wait for it"


@pytest.mark.parametrize("pool", in_time(*POOLS))
def test_job_longer_than_the_worker_timeout_runs_once(fleet, pool):
    fleet.start("long", "pdf", pool=pool, timeout_s=2, heartbeat_s=0.5)
    fleet.start("other", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    sleeping = [fleet.tasks["late"].delay("sleeping-1", 5), fleet.tasks["late"].delay("sleeping-2", 5)]
    for result in sleeping:
        result.get(timeout=20)
    computing = [fleet.tasks["compute"].delay("computing-1", 5), fleet.tasks["compute"].delay("computing-2", 5)]
    for result in computing:
        result.get(timeout=30)
    wait_until(fleet.all_slots_are_free, 10, "the slots are free again")
    assert set(fleet.ledger.starts().values()) == {1}
    assert len(fleet.ledger.starts()) == 4


def test_killed_workers_late_acked_jobs_run_again_first(fleet):
    fleet.start("ticker", "index", pool="solo", timeout_s=2, heartbeat_s=0.5)
    doomed = fleet.start("doomed", "pdf", pool="threads", concurrency=3, timeout_s=2, heartbeat_s=0.5)
    late = [fleet.tasks["late"].delay(f"late-{number}", 30) for number in range(2)]
    early = fleet.tasks["early"].delay("early", 30)
    wait_until(lambda: len(fleet.ledger.starts()) == 3, 10, "all three run")
    wait_until(lambda: fleet.acked() == 1, 10, "the early one is acked")
    younger = fleet.tasks["late"].delay("younger", 0)
    doomed.kill()
    wait_until(lambda: "doomed" not in fleet.names(), 20, "its death is noticed")
    fleet.start("healthy", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    for result in (*late, younger):
        result.get(timeout=20)
    wait_until(fleet.all_slots_are_free, 10, "the slot is free again")
    starts = fleet.ledger.starts()
    assert {job: starts[job] for job in ("late-0", "late-1", "early", "younger")} == {
        "late-0": 2,
        "late-1": 2,
        "early": 1,
        "younger": 1,
    }
    order = [entry.job for entry in fleet.ledger.entries() if entry.event == "start"][3:]
    assert order == ["late-0", "late-1", "younger"]
    (lost,) = fleet.dead()
    assert (lost.task_id, lost.reason) == (early.id, "lost")


def test_warm_shutdown_finishes_running_jobs_and_returns_the_rest(fleet):
    worker = fleet.start("leaving", "pdf", pool="prefork", concurrency=2)
    running = [fleet.tasks["pdf"].delay(f"running-{number}", 3) for number in range(2)]
    waiting = [fleet.tasks["pdf"].delay(f"waiting-{number}") for number in range(5)]
    wait_until(lambda: len(fleet.ledger.starts()) == 2, 10, "two run")
    worker.term()
    assert worker.wait(20) == 0
    assert [result.get(timeout=1) for result in running] == ["running-0", "running-1"]
    (status,) = fleet.report.status().types
    assert (status.pending, status.slots, status.unserved) == (5, 0, True)
    fleet.start("next", "pdf", pool="solo")
    assert [result.get(timeout=10) for result in waiting] == [f"waiting-{number}" for number in range(5)]


def test_cold_shutdown_returns_and_counts_running_jobs(fleet):
    worker = fleet.start("leaving", "pdf", pool="prefork", concurrency=6)
    late = [fleet.tasks["late"].delay(f"late-{n}", 30) for n in range(5)]
    early = fleet.tasks["early"].delay("early", 30)
    wait_until(lambda: len(fleet.ledger.starts()) == 6 and fleet.acked() == 1, 10, "all run")
    worker.signal(signal.SIGQUIT)
    worker.wait(20)
    assert "Restoring 5 unacknowledged message(s)" in worker.log()
    assert "A heartbeat failed" not in worker.log(), "the pool is gone before the worker is"
    fleet.start("next", "pdf", pool="threads", concurrency=6)
    assert [result.get(timeout=20) for result in late] == [f"late-{n}" for n in range(5)]
    assert fleet.ledger.starts() == {**{f"late-{n}": 2 for n in range(5)}, "early": 1}
    with pytest.raises(WorkerLostError):
        early.get(timeout=20)


@pytest.mark.parametrize("is_cold", [False, True])
def test_ends_in_a_cold_shutdown_are_left_unreported(monkeypatch, is_cold):
    """Before the worker stops, the pool may notice killed processes, and the server may answer."""
    monkeypatch.setattr(state, "should_terminate", 1 if is_cold else None)
    host = CeleryWorkerLoop(SimpleNamespace(hub=Mock()))
    host.loop = Mock(is_here=True)
    reporting = reporting_of(host=host)
    reporting.outbox.send = told = Mock()
    reporting.end(reporting.claims.hold(Claim("job", "1", "pdf", 0, 0, b"")))
    reporting.tell()
    assert told.called != is_cold


def test_late_ack_of_a_suspended_worker_changes_nothing(fleet):
    zombie = fleet.start("zombie", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    result = fleet.tasks["late"].delay("job", 3)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    zombie.signal(signal.SIGSTOP)
    fleet.start("healthy", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    result.get(timeout=20)
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: fleet.ledger.ends()["job"] == 2, 10, "the zombie ends its own")
    wait_until(lambda: fleet.names() == {"zombie", "healthy"} and fleet.all_slots_are_free(), 10, "it is back")
    fleet.tasks["late"].delay("next").get(timeout=10)
    assert fleet.ledger.starts() == {"job": 2, "next": 1}


@pytest.mark.parametrize("pool", POOLS)
def test_every_end_of_a_task_frees_its_slot_once(fleet, pool):
    fleet.start("worker", "pdf", pool=pool, concurrency=2)
    tasks = fleet.tasks

    def ends(result, state, value=None):
        wait_until(lambda: result.state == state, 15, f"{state}, not {result.state}")
        if value is not None:
            assert result.get(timeout=1) == value
        wait_until(fleet.all_slots_are_free, 10, f"the slot is free after {state}")

    ends(tasks["pdf"].delay("success"), "SUCCESS", "success")
    ends(tasks["early"].delay("early"), "SUCCESS", "early")
    ends(tasks["late"].delay("late"), "SUCCESS", "late")
    ends(tasks["fail"].delay("fail"), "FAILURE")
    ends(tasks["retry"].delay("retry"), "SUCCESS")
    rejected = tasks["reject"].delay("reject")
    wait_until(lambda: fleet.ledger.starts()["reject"], 10, "it runs")
    ends(rejected, "FAILURE" if since.REJECTED_FAILS else "PENDING")
    ends(tasks["reject"].delay("requeue", requeue=True), "SUCCESS", "again")
    ends(tasks["pdf"].apply_async(("expired",), expires=-1), "REVOKED")
    revoked = tasks["pdf"].apply_async(("revoked",), countdown=1)
    revoked.revoke()
    ends(revoked, "REVOKED")
    left = tasks["leave"].delay("exit")
    wait_until(lambda: fleet.ledger.starts()["exit"], 10, "it runs")
    ends(left, "FAILURE" if since.EXIT_FAILS or pool != "prefork" else "PENDING")
    tasks["ignore"].delay("ignore")
    wait_until(lambda: fleet.ledger.starts()["ignore"], 10, "it runs")
    wait_until(fleet.all_slots_are_free, 10, "the slot is free after Ignore")
    fleet.app.send_task("no.such.task", queue="pdf")
    wait_until(lambda: "no.such.task" in {letter.task for letter in fleet.dead()}, 10, "it is a dead letter")
    wait_until(fleet.all_slots_are_free, 10, "the slot is free after an unknown task")
    if pool == "prefork":
        ends(tasks["lose_child"].delay("lost child"[:4]), "SUCCESS", "again")
        ends(tasks["too_long"].delay("hard"), "FAILURE")
        ends(tasks["too_long_softly"].delay("soft"), "FAILURE")
        terminated = tasks["pdf"].delay("terminated", 60)
        wait_until(lambda: fleet.ledger.starts()["terminated"], 10, "it runs")
        terminated.revoke(terminate=True, signal="KILL")
        ends(terminated, "REVOKED")
    starts = fleet.ledger.starts()
    twice = {"retry", "requeue", "lost"}
    assert {job for job, count in starts.items() if count != 1} <= twice
    assert not {"expired", "revoked"} & starts.keys()


def test_scheduled_jobs_start_within_half_a_second_of_eta(fleet):
    fleet.start("worker", "pdf", pool="threads", concurrency=4)
    due = {}
    for number in range(8):
        countdown = 0.5 + number * 0.35
        due[f"job-{number}"] = time.time() + countdown
        fleet.tasks["pdf"].apply_async((f"job-{number}",), countdown=countdown)
    assert fleet.report.status().scheduled >= 6
    wait_until(lambda: len(fleet.ledger.ends()) == 8, 15, "all ran")
    for entry in fleet.ledger.entries():
        if entry.event == "start":
            assert 0 <= entry.time_s - due[entry.job] < 0.5
