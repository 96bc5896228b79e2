"""`Buffers` detects which claims are in the buffer of a custom strategy."""

from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_affinity.leases.held_claim import UNSETTLED
from celery_affinity.scheduler.messages import Claim
from celery_affinity.worker import request_end
from celery_affinity.worker.buffers import recording_buffered

from ..support.members import inbox_of, reporting_of


class Message:
    acknowledged = False
    headers, properties = {"id": "id"}, {}

    def __init__(self, reporting, tag):
        self.channel, self.delivery_tag = SimpleNamespace(inbox=inbox_of(reporting)), tag


class Request:
    id, name, is_in_the_pool, is_buffered = "id", "task", None, False

    def __init__(self, message=None):
        self.message = message


class Worker:
    def __init__(self):
        self.reporter = reporting_of()
        self.claims = self.reporter.claims
        self.consumer = SimpleNamespace(
            affinity_made_ahead=[], affinity_limits=None, task_buckets={}, controller=SimpleNamespace(semaphore=None)
        )
        self.kept = []

    def receive(self, handle):
        """Pass a message to the strategy *handle*. Return the tag of the claim."""
        tag = self.claims.hold(Claim("job", "1", "pdf", 0, 0, b""))
        task = SimpleNamespace(name="task")
        recording_buffered(self.consumer, task, handle)(Message(self.reporter, tag))
        return tag

    def bound(self, message, keeps_message=True):
        request = Request(message if keeps_message else None)
        self.claims.bind(message.delivery_tag, request)
        self.kept.append(request)
        return request


@pytest.fixture
def worker():
    return Worker()


def test_request_outside_of_celerys_collections_is_buffered(worker):
    tag = worker.receive(worker.bound)
    assert worker.claims.buffered_count() == 1
    assert worker.claims.find(tag).is_buffered
    assert worker.kept[0].is_buffered
    request_end.LeakedClaims(worker.consumer, worker.reporter).free(loop_runs=True)
    assert worker.claims.buffered_count() == 1


def test_message_without_a_request_is_buffered(worker):
    worker.receive(worker.kept.append)
    assert worker.claims.buffered_count() == 1


def test_request_in_celerys_collections_is_not_buffered(worker):
    def reserve(message):
        state.reserved_requests.add(worker.bound(message))

    def give_to_the_pool(message):
        worker.bound(message).is_in_the_pool = lambda: True

    def limit(message):
        bucket = SimpleNamespace(contents=[(worker.bound(message), 1)])
        worker.consumer.task_buckets["task"] = bucket

    def make_ahead(message):
        worker.consumer.affinity_made_ahead.append([message.delivery_tag])

    for handle in (reserve, give_to_the_pool, limit, make_ahead):
        worker.__init__()
        worker.receive(handle)
        assert worker.claims.buffered_count() == 0, handle


def test_unreferenced_message_is_dropped(worker, caplog):
    tag = worker.receive(lambda message: worker.bound(message, keeps_message=False))
    assert worker.claims.buffered_count() == 1
    request_end.LeakedClaims(worker.consumer, worker.reporter).free(loop_runs=True)
    assert worker.claims.settled_in_buffer() == {tag}
    assert worker.claims.end(tag).outcome == UNSETTLED
    assert "has dropped it" in caplog.text


def test_requeued_message_is_not_buffered(worker):
    def requeue(message):
        worker.bound(message)
        worker.reporter.set_outcome(message.delivery_tag, UNSETTLED)
        message.acknowledged = True

    tag = worker.receive(requeue)
    assert worker.claims.buffered_count() == 0
    assert worker.claims.settled_in_buffer() == {tag}


def test_ended_claim_is_not_buffered(worker):
    worker.receive(lambda message: worker.reporter.end(message.delivery_tag))
    assert worker.claims.buffered_count() == 0
