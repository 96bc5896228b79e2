"""The event loop reports a claim immediately or before a task blocks it; otherwise the heartbeat thread reports it."""

import threading
import time
from unittest.mock import Mock

import pytest

from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim

from ..support.members import Host, Pool, report_end, reporting_of


def test_immediate_report_is_sent_before_the_loop_wakes(worker, in_flight):
    (claim,) = report_end(worker, in_flight)
    host, in_flight_states = Host(in_flight), []
    host.wake = lambda: in_flight_states.append(reporting.outbox.is_telling) or True
    reporting = reporting_of(worker.claims, scheduler=worker.scheduler, host=host)
    reporting.end(worker.claims.hold(claim))
    assert in_flight_states == [True], "the reply wakes the loop"
    reporting.receive()


@pytest.mark.parametrize(
    ("has_prefetched", "blocks", "is_immediate"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_end_is_reported_immediately_unless_a_prefetched_job_starts(
    worker, in_flight, has_prefetched, blocks, is_immediate
):
    (claim,) = report_end(worker, in_flight)
    pool = Pool(blocks_the_loop=blocks)
    reporting = reporting_of(worker.claims, scheduler=worker.scheduler, host=Host(in_flight), pool=pool, lookahead=4)
    if has_prefetched:
        reporting.lookahead.add(claim._replace(job_id="another"), "another:1")
    reporting.end(worker.claims.hold(claim))
    assert reporting.outbox.is_telling is is_immediate
    if is_immediate:
        reporting.receive()


def test_stalled_loop_wakes_the_heartbeat_thread_once():
    membership, age_s = Member.__new__(Member), 0.4
    membership._loop, membership._heartbeats = Mock(), Mock()
    membership._loop.stands_still_for = lambda seconds: seconds < age_s
    membership.reporter = reporting_of()
    membership.reporter.claims.hold(Claim("job", "1", "pdf", 0, 0, b""))
    membership.look_at_the_loop(0.5)
    assert not membership._heartbeats.wake.called, "it ran a moment ago"
    age_s = 0.6
    for _ in range(2):
        membership.look_at_the_loop(0.5)
    assert membership._heartbeats.wake.call_count == 1, "the second time there is nothing new to report"


def _reporting(acking, in_flight):
    reporting = reporting_of(acking.claims, scheduler=acking.scheduler, host=Host(in_flight))
    reporting.outbox = acking.outbox
    return reporting


def test_ack_now_waits_for_another_threads_report(acking, in_flight):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    settle, is_waiting = acking.scheduler.release_and_claim, threading.Event()
    acking.scheduler.release_and_claim = lambda *args, **options: (is_waiting.wait(10), settle(*args, **options))[1]
    other = threading.Thread(target=lambda: acking.outbox.flush(acking.scheduler, inline=False))
    other.start()
    while acking.claims.has_acks:
        pass
    threading.Timer(0.1, is_waiting.set).start()
    _reporting(acking, in_flight).ack_now()
    other.join(10)
    assert acking.claims.is_void(acking.tag), "before the task starts"


@pytest.mark.parametrize(("fresh", "waits"), [(True, False), (False, True)])
def test_worker_near_its_timeout_waits_for_the_acks_reply(acking, in_flight, fresh, waits):
    reporting = _reporting(acking, in_flight)
    acking.claims.lease.renew(asked_at_s=time.monotonic() - (14 if fresh else 16), timeout_s=30)
    flush = reporting._flush = Mock(wraps=reporting._flush)
    reporting.ack_now()
    assert flush.called == waits
    assert in_flight.is_under_way
    acking.outbox.receive(acking.scheduler)
    assert acking.is_acked()


def test_ack_without_a_loop_is_answered_before_the_start(acking):
    """A cold shutdown of the solo pool has no loop. Here the reply is that another worker has the job."""
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    _reporting(acking, in_flight=None).ack_now()
    assert acking.claims.is_void(acking.tag)
