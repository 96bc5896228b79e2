"""Requests that are built while tasks run: they delay no start, and their jobs can still be returned."""

import json
import re

import pytest
from kombu.utils.limits import TokenBucket

from celery_affinity.leases.held_claim import EXPIRED
from celery_affinity.worker import job_feed as following_module

from ..support.fleet import in_time
from ..support.processes import wait_until
from ..support.worker_alone import Worker


def one_runs_and(*types):
    """Return a worker whose only slot is taken while jobs of *types* wait."""
    worker = Worker(1, ("pdf", "mail"), makes=True)
    for type_ in ("pdf", *types):
        worker.hold(type_)
    worker.iterate()
    assert len(worker.running) == 1
    return worker


def made(worker):
    return list(worker.job_feed._prebuilt._requests.values())


def test_one_prebuilt_request_per_slot_takes_no_slot():
    worker = one_runs_and("pdf", "pdf")
    (request,) = made(worker)
    ((_, tag),) = worker.reporter.lookahead.first(1)
    assert request._tag == tag
    held = worker.claims.find(tag)
    assert (held.request, held.slot_since_s) == (None, None)
    worker.end_one()
    worker.iterate()
    assert worker.running == [request], "and none is made twice"
    assert held.request is request
    assert held.slot_since_s is not None, "its wait is counted"


@pytest.mark.parametrize("has_a_token", [False, True])
def test_rate_limit_set_after_prebuilding_applies(has_a_token):
    worker = one_runs_and("pdf")
    (request,) = made(worker)
    bucket = worker.limited.task_buckets["pdf"] = TokenBucket(0.001)
    bucket._tokens = int(has_a_token)
    worker.end_one()
    worker.iterate()
    waiting = [each for each, _ in bucket.contents]
    assert (worker.running, waiting) == (([request], []) if has_a_token else ([], [request]))


def test_rate_limit_removed_after_prebuilding_does_not_apply():
    worker = one_runs_and("mail")
    (request,) = made(worker)
    worker.limited.task_buckets["mail"] = None
    worker.end_one()
    worker.iterate()
    assert worker.running == [request]


def test_job_that_ends_during_prebuilding_is_dropped():
    worker = one_runs_and()

    def consume(claim, tag, **options):
        worker.reporter.end(tag, EXPIRED)

    worker.job_feed._channel.consume = consume
    worker.hold("pdf")
    worker.job_feed._prebuild_requests()
    assert not worker.reporter.lookahead
    assert worker.claims.unfinished() == 1


def test_job_that_cannot_start_is_dead_lettered():
    worker = one_runs_and("pdf", "pdf")
    (first,) = made(worker)
    may_start = worker.claims.check_may_start

    def failing_once(tag):
        if tag == first._tag:
            raise ValueError("no such strategy")
        return may_start(tag)

    worker.claims.check_may_start = failing_once
    worker.end_one()
    worker.iterate()
    worker.iterate()
    assert worker.buried == ["job2"]
    assert [request._tag for request in worker.running] == ["job3:3"]


class Pool:
    def __init__(self, blocks_the_loop):
        self.blocks_the_loop = blocks_the_loop
        self.size = lambda: 1


@pytest.mark.parametrize(
    ("blocks", "writes", "order"),
    [
        (False, False, ["start", "write", "wake"]),  # the loop writes first, and leaves the rest to the next iteration
        (False, True, ["start", "write", "tell"]),
        (True, True, ["tell", "start", "wake"]),
    ],
    ids=["prefork, without an idle process", "prefork, threads", "solo"],
)
def test_deferrable_work_does_not_delay_a_start(monkeypatch, blocks, writes, order):
    worker, did = one_runs_and("pdf", "pdf", "pdf"), []
    worker.end_one()
    following = worker.job_feed
    following._slots, worker.limited.hub = Pool(blocks), None
    monkeypatch.setattr(following_module.pool, "writes_immediately", lambda pool, hub: did.append("write") or writes)
    following._start_claim = lambda claim, tag: did.append("start") or following._prebuilt.drop([tag])
    following.reporter.tell = lambda: did.append("tell")
    following._prebuilt.make = lambda tag, consume: did.append("make") or True
    worker.host.wake = lambda: did.append("wake")
    following._start_and_report()
    assert did[:3] == order
    following._start_and_report()
    assert "tell" in did


@pytest.mark.parametrize(
    ("seconds", "goes_on", "run"),
    [(60, True, 3), (0, True, 1), (60, False, 1)],
    ids=["short tasks", "tasks that take their time", "the worker is told to stop"],
)
def test_solo_worker_runs_short_tasks_in_one_iteration(monkeypatch, seconds, goes_on, run):
    monkeypatch.setattr(following_module, "_MAX_BLOCKING_S", seconds)
    worker, ran = one_runs_and("pdf", "pdf", "pdf"), []
    worker.end_one()
    worker.host.goes_on = goes_on
    worker.job_feed._slots = Pool(blocks_the_loop=True)
    worker.job_feed._start_claim = lambda claim, tag: ran.append(tag) or worker.reporter.end(tag)
    worker.host.wake.reset_mock()
    worker.job_feed._start_and_report()
    assert ran == [f"job{number}:{number}" for number in range(2, 2 + run)]
    assert worker.host.wake.called, "the rest runs in the next iteration"


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_job_with_prebuilt_request_is_returned_and_runs_elsewhere(fleet, pool):
    options = {"CONF": json.dumps({"affinity_lookahead": 8})}
    for number in range(12):
        fleet.tasks["late"].delay(f"before-{number}", 0)
    fleet.tasks["late"].delay("long", 30)
    behind = [fleet.tasks["late"].delay(f"behind-{number}", 0).id for number in range(3)]
    holder = fleet.start("holder", "pdf", pool=pool, **options)
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "the long one runs")
    wait_until(lambda: re.search(rf"Task \S+\[{behind[0]}\] received", holder.log()), 10, "the next request is made")
    fleet.start("idle", "pdf", pool="solo", **options)
    wait_until(lambda: all(fleet.ledger.starts()[f"behind-{number}"] for number in range(3)), 10, "the other runs them")
    assert set(fleet.ledger.starts().values()) == {1}
    replies = fleet.app.control.broadcast("reserved", reply=True, timeout=10, limit=2)
    assert [answer for reply in replies for answer in reply.values()] == [[], []], "Celery forgets what went back"
