"""Early acks of the solo pool: the worker sends an ack before the task starts, and does not wait for a reply.

If the worker or its connection fails at that moment, no job runs twice, and no unstarted job is lost.
"""

import signal
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from celery_affinity.leases.held_claim import ACKED
from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker.event_loop import CeleryWorkerLoop

from ..support.apps import APP
from ..support.members import Pool, reporting_of
from ..support.processes import start_worker, wait_until
from ..support.requests import request_of

FAULTY, SPARED = "tests.support.apps.acks", 2


def start(fleet, type_, fault, **env):
    """Start a solo worker, the only worker of its type, that *fault* will hit. Run the jobs before the fault."""
    env = {"LEDGER": str(fleet.ledger.path), "FAULT": fault, "HEARTBEAT_INTERVAL": "0.5", **env}
    worker = start_worker(FAULTY, fleet.url, [type_], pool="solo", name=type_, env=env)
    wait_until(lambda: type_ in fleet.names(), 30, f"it joins\n{worker.log()}")
    for nth in range(SPARED):
        send(fleet, type_, f"{type_}-spared-{nth}").get(timeout=10)
        wait_until(fleet.all_slots_are_free, 10, "it waits for the next")
    return worker


def send(fleet, type_, job, seconds=0.0):
    return fleet.tasks["early"].apply_async((job, seconds), affinity=type_)


def lost(fleet):
    return {letter.task_id for letter in fleet.dead() if letter.reason == "lost"}


def test_worker_killed_around_its_ack_runs_no_job_twice(fleet):
    types = ("before", "after", "running")
    workers = {type_: start(fleet, type_, f"killed {type_}") for type_ in types}
    jobs = {type_: send(fleet, type_, type_, 30 if type_ == "running" else 0) for type_ in types}
    wait_until(lambda: fleet.ledger.starts()["running"], 10, "it runs")
    workers["running"].kill()
    for worker in workers.values():
        worker.wait(10)
    wait_until(lambda: not fleet.names(), 10, "their guards said so")
    start_worker(APP, fleet.url, types, pool="solo", name="next", env={"LEDGER": str(fleet.ledger.path)})
    assert jobs["before"].get(timeout=20) == "before"
    wait_until(fleet.all_slots_are_free, 10, "nothing else is to be run")
    assert {type_: fleet.ledger.starts()[type_] for type_ in types} == {"before": 1, "after": 0, "running": 1}
    assert lost(fleet) == {jobs["after"].id, jobs["running"].id}
    assert sum(each.pending for each in fleet.report.status().types) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_suspended_around_its_ack_starts_no_reclaimed_job(fleet, when):
    zombie = start(fleet, "pdf", f"suspended {when}", WORKER_TIMEOUT="2")
    job = send(fleet, "pdf", "job")
    wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, 10, "it is suspended")
    fleet.start("healthy", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    wait_until(lambda: fleet.ledger.starts()["job"] or lost(fleet) == {job.id}, 15, "it is declared dead")
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: fleet.names() == {"pdf", "healthy"} and fleet.all_slots_are_free(), 15, "it is back")
    wait_until(lambda: fleet.ledger.ends()["job"], 10, "it was run")
    assert fleet.ledger.starts()["job"] == 1, zombie.log()
    assert ("is not started" in zombie.log()) == (when == "before")
    assert lost(fleet) == (set() if when == "before" else {job.id})


def test_lost_ack_is_sent_again_while_the_task_runs(fleet):
    worker = start(fleet, "pdf", "swallowed", CONF='{"broker_transport_options": {"socket_timeout": 2}}')
    job = send(fleet, "pdf", "job", 30)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    assert fleet.acked() == SPARED
    wait_until(lambda: fleet.acked() == SPARED + 1, 15, "another thread says it")
    worker.kill()
    wait_until(lambda: lost(fleet) == {job.id}, 10, "it is given up")
    assert fleet.ledger.starts()["job"] == 1


def test_task_with_a_lost_ack_reports_its_end(fleet):
    worker = start(fleet, "pdf", "swallowed", CONF='{"broker_transport_options": {"socket_timeout": 2}}')
    for number in range(3):
        assert send(fleet, "pdf", number, 0.1).get(timeout=10) == number
    wait_until(fleet.all_slots_are_free, 15, f"all ends are known\n{worker.log()}")
    assert [fleet.ledger.starts()[str(number)] for number in range(3)] == [1, 1, 1]


def test_job_with_refused_ack_never_starts_in_solo_pool(app):
    reporting = reporting_of(pool=Pool(blocks_the_loop=True))
    request, _ = request_of(app, reporting)
    request._pool = SoloPool()
    number = reporting.claims.held_claims()[0].number
    reporting.set_outcome(":".join(number), ACKED)
    reporting.outbox.flush = lambda *_, **__: reporting.claims.void([number])
    request.on_accepted(1, 0.0)
    assert request.is_cancelled_before_start
    assert reporting.claims.held_claims() == []


@pytest.mark.parametrize("is_cold", [False, True])
def test_cold_shutdown_waits_for_replies_to_early_acks(monkeypatch, is_cold):
    """The event loop no longer reads replies, so without a wait a refusal would be missed."""
    monkeypatch.setattr(state, "should_terminate", 1 if is_cold else None)
    host = CeleryWorkerLoop(SimpleNamespace(hub=Mock()))
    host.loop = Mock(is_here=True)
    reporting = reporting_of(host=host, pool=Pool(blocks_the_loop=True))
    reporting.outbox.send_acks = sent = Mock(return_value=True)
    reporting.outbox.flush = answered = Mock(return_value=[])
    tag = reporting.claims.hold(Claim("job", "1", "pdf", 0, 0, b""))
    reporting.claims.bind(tag, "request")
    reporting.claims.set_outcome(tag, ACKED)
    reporting.started(tag)
    assert (sent.called, answered.called) == (not is_cold, is_cold)
