"""Publishes of many calls that fail midway: a lost reply, a lost server, a failing iterator; and their resumption."""

import itertools
import pickle

import pytest
import redis
from kombu.utils.json import loads

from celery_affinity import PublishError, publish_many
from celery_affinity.publishing import bulk as many
from celery_affinity.scheduler.scheduler import Scheduler

from ..support.many_calls import arguments, messages, task


@pytest.fixture
def away(monkeypatch):
    """Return a function that lets *count* round trips of a publish pass, and loses the next *times* replies."""
    publish = Scheduler.publish

    def away_after(count, times=1000, part=slice(None)):
        calls = itertools.count()

        def lossy(self, *jobs):
            call = next(calls)
            published = publish(self, *(jobs[part] if count <= call < count + times else jobs))
            if count <= call < count + times:
                raise redis.ConnectionError("the reply was lost")
            return published

        monkeypatch.setattr(Scheduler, "publish", lossy)
        monkeypatch.setattr(many, "_TOGETHER", 10)

    return away_after


def test_lost_reply_is_requested_again_without_duplicates(app, away):
    away(1, times=1)
    ids = publish_many(task(app), [(number,) for number in range(35)], retry_policy={"interval_start": 0})
    assert [message["headers"]["id"] for message in messages(app)] == list(ids)


@pytest.mark.parametrize("part", [slice(0), slice(4), slice(None)], ids=["none of it", "some", "all of it"])
def test_publish_interrupted_midway_is_reported_and_resumed(app, away, monkeypatch, part):
    render, calls = task(app), [(number,) for number in range(35)]
    away(2, part=part)
    with pytest.raises(
        PublishError, match=r"20 calls of task.* were published, and perhaps some of the next 10"
    ) as ended:
        publish_many(render, calls, retry=False)
    assert ended.value.published == 20
    assert ended.value.__cause__ is not None
    monkeypatch.undo()
    passed_on = pickle.loads(pickle.dumps(ended.value))
    ids = publish_many(render, calls, resume=passed_on)
    assert len(ids) == 35
    assert arguments(app) == [[number] for number in range(35)]
    assert [message["headers"]["id"] for message in messages(app)] == list(ids)


def test_publish_without_a_server_is_reported_and_resumed(app, away, monkeypatch):
    """The server may have received the first calls, so a caller that repeats them must use the same ids."""
    away(0)
    with pytest.raises(PublishError) as ended:
        publish_many(task(app), [("a",)], retry=False)
    assert ended.value.published == 0
    monkeypatch.undo()
    publish_many(task(app), [("a",)], resume=ended.value)


def test_failing_iterator_reports_the_number_of_published_calls(app, monkeypatch):
    monkeypatch.setattr(many, "_TOGETHER", 10)

    def calls():
        yield from ((number,) for number in range(25))
        raise OSError("the file ended")

    with pytest.raises(PublishError, match=r"20 calls of .* were published, then: the file ended") as ended:
        publish_many(task(app), calls())
    assert ended.value.published == 20
    assert len(messages(app)) == 20


def test_iterator_that_fails_first_raises_its_own_error(app):
    def calls():
        yield ("a",)
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        publish_many(task(app), calls())


def test_publish_of_single_calls_is_resumed(app):
    app.conf.affinity_queues = ["pdf"]
    render = task(app, affinity=None)

    def calls():
        yield from [("a",), ("b",)]
        raise OSError("the file ended")

    with pytest.raises(PublishError) as ended:
        publish_many(render, calls())
    ids = publish_many(render, [("a",), ("b",), ("c",)], resume=ended.value)
    found = [loads(each.decode())["headers"]["id"] for each in app.redis.lrange("celery", 0, -1)]
    assert found[::-1] == list(ids)
