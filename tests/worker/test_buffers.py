"""What a strategy of a task's own has done with a message: which claims are in its buffer."""

from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_affinity.membership.held import UNSETTLED
from celery_affinity.server.replies import Claim
from celery_affinity.worker import strays
from celery_affinity.worker.buffers import Buffers

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
        self.reporting = reporting_of()
        self.claims = self.reporting.claims
        self.consumer = SimpleNamespace(
            affinity_made_ahead=[], affinity_limits=None, task_buckets={}, controller=SimpleNamespace(semaphore=None)
        )
        self.kept = []

    def receive(self, handle):
        """Have a strategy *handle* a message. Return the tag of its claim."""
        tag = self.claims.hold(Claim("job", "1", "pdf", 0, 0, b""))
        task = SimpleNamespace(name="task")
        Buffers(self.consumer).noting(task, handle)(Message(self.reporting, tag))
        return tag

    def bound(self, message, keeps_message=True):
        request = Request(message if keeps_message else None)
        self.claims.bind(message.delivery_tag, request)
        self.kept.append(request)
        return request


@pytest.fixture
def worker():
    return Worker()


def test_a_request_that_is_nowhere_is_in_a_buffer(worker):
    tag = worker.receive(worker.bound)
    assert worker.claims.buffered_count() == 1
    assert worker.claims.find(tag).is_buffered
    assert worker.kept[0].is_buffered
    strays.Strays(worker.consumer, worker.reporting).free(loop_runs=True)
    assert worker.claims.buffered_count() == 1


def test_a_message_without_a_request_is_in_a_buffer_too(worker):
    worker.receive(worker.kept.append)
    assert worker.claims.buffered_count() == 1


def test_a_request_that_celery_has_is_in_no_buffer(worker):
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


def test_message_that_nobody_keeps_is_dropped(worker, caplog):
    tag = worker.receive(lambda message: worker.bound(message, keeps_message=False))
    assert worker.claims.buffered_count() == 1
    strays.Strays(worker.consumer, worker.reporting).free(loop_runs=True)
    assert worker.claims.settled_in_buffer() == {tag}
    assert worker.claims.end(tag).outcome == UNSETTLED
    assert "has dropped it" in caplog.text


def test_requeued_message_is_in_no_buffer(worker):
    def requeue(message):
        worker.bound(message)
        worker.reporting.settle(message.delivery_tag, UNSETTLED)
        message.acknowledged = True

    tag = worker.receive(requeue)
    assert worker.claims.buffered_count() == 0
    assert worker.claims.settled_in_buffer() == {tag}


def test_a_claim_that_has_ended_is_left_alone(worker):
    worker.receive(lambda message: worker.reporting.end(message.delivery_tag))
    assert worker.claims.buffered_count() == 0
