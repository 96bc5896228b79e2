"""Threads that tell of a claim: the event loop's, at once or before a task blocks it, or the heartbeats' thread."""

import threading
import time
from unittest.mock import Mock

import pytest

from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim

from ..support.members import Host, Pool, reporting_of, told


def test_what_is_told_at_once_wakes_nobody(worker, in_flight):
    (claim,) = told(worker, in_flight)
    host, on_its_way = Host(in_flight), []
    host.wake = lambda: on_its_way.append(reporting.outbox.is_telling) or True
    reporting = reporting_of(worker.claims, scheduler=worker.scheduler, host=host)
    reporting.end(worker.claims.hold(claim))
    assert on_its_way == [True], "a loop that is to be answered is woken by the reply"
    reporting.receive()


@pytest.mark.parametrize(
    ("ahead", "blocks", "at_once"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_an_end_is_told_at_once_unless_another_job_is_to_start_first(worker, in_flight, ahead, blocks, at_once):
    (claim,) = told(worker, in_flight)
    pool = Pool(blocks_the_loop=blocks)
    reporting = reporting_of(worker.claims, scheduler=worker.scheduler, host=Host(in_flight), pool=pool, lookahead=4)
    if ahead:
        reporting.lookahead.add(claim._replace(job_id="another"), "another:1")
    reporting.end(worker.claims.hold(claim))
    assert reporting.outbox.is_telling is at_once
    if at_once:
        reporting.receive()


def test_a_loop_that_stands_still_is_done_without_once():
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
    assert membership._heartbeats.wake.call_count == 1, "the second time there is nothing new to tell"


def _reporting(acking, in_flight):
    reporting = reporting_of(acking.claims, scheduler=acking.scheduler, host=Host(in_flight))
    reporting.outbox = acking.outbox
    return reporting


def test_an_ack_that_another_thread_is_about_to_tell_is_waited_for(acking, in_flight):
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
    assert acking.claims.is_void(acking.tag), "known when the task would start"


@pytest.mark.parametrize(("fresh", "waits"), [(True, False), (False, True)])
def test_a_worker_that_may_soon_be_taken_for_dead_waits_for_the_reply_to_an_ack(acking, in_flight, fresh, waits):
    reporting = _reporting(acking, in_flight)
    acking.claims.lease.renew(asked_at_s=time.monotonic() - (14 if fresh else 16), timeout_s=30)
    flush = reporting._flush = Mock(wraps=reporting._flush)
    reporting.ack_now()
    assert flush.called == waits
    assert in_flight.is_under_way
    acking.outbox.receive(acking.scheduler)
    assert acking.is_acked()


def test_where_no_loop_reads_replies_an_ack_is_answered_before_its_task_starts(acking):
    """A cold shutdown of the solo pool is such a case. Here the answer is that another worker has the job."""
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    _reporting(acking, in_flight=None).ack_now()
    assert acking.claims.is_void(acking.tag)
