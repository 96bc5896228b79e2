"""Destinations of calls: the precedence of places, and refused calls."""

import subprocess
import sys

import pytest
import redis
from celery import group, shared_task
from celery.exceptions import QueueNotFound
from celery.signals import before_task_publish
from kombu import Queue

from celery_affinity import Affinity, OptionError, publish_many

from ..support import since
from ..support.destinations import CONFS, OURS, called, retry, then
from ..support.messages import running

#: Place of the option, in descending precedence -> the call, then places of lower precedence: task options and routes.
ORDER = {
    "affinity of a call": (called(affinity="video"), {"affinity": "x", "queue": "y"}, {"nothing": {"queue": "x"}}),
    "of a signature": (lambda _, task: task.s().set(affinity="video").delay(), {"affinity": "x"}, None),
    "of a retry": (then(called(queue="x"), retry(affinity="video")), {"affinity": "y"}, None),
    "a retry keeps it": (then(called(affinity="video"), retry()), {"affinity": "x"}, {"nothing": {"affinity": "y"}}),
    "the later of two": (lambda _, task: task.s().set(queue="x").set(affinity="video").delay(), {}, None),
    "the call": (lambda _, task: task.s().set(queue="x").apply_async(affinity="video"), {}, None),
    "queue of the call": (lambda _, task: task.s().set(affinity="x").apply_async(queue="video"), {}, None),
    "queue that is later": (lambda _, task: task.s().set(affinity="x").set(queue="video").delay(), {}, None),
    "group": (lambda _, task: group([task.si().set(affinity="x")]).apply_async(queue="video"), {}, None),
    "queue that the task has too": (called(queue="video"), {"queue": "video", "affinity": "x"}, None),
    "affinity of a route": (called(), {"affinity": "x", "queue": "y"}, {"nothing": {"affinity": "video"}}),
    "an affinity without a type": (called(affinity=Affinity(priority=3)), {"affinity": "video"}, None),
    "both, if they agree": (called(affinity="video", queue="video"), {"affinity": "x"}, None),
    "both, as a Queue": (called(affinity="video", queue=Queue("video")), {"affinity": "x"}, None),
    "both, as a routing_key": (called(affinity="video", routing_key="video"), {"affinity": "x"}, None),
}


@pytest.mark.filterwarnings("ignore:[\\s\\S]*task attribute is deprecated")
@pytest.mark.parametrize("name", ORDER)
def test_places_apply_in_order_of_precedence(publishers, name):
    way, own, routes = ORDER[name]
    ours = publishers(OURS, task_routes=routes)
    assert ours.place(way, ours.task(**own)).messages == [("video", "", "video")]


def test_signal_handler_has_the_highest_precedence(publishers):
    ours = publishers(OURS)

    def ask(properties, **_):
        properties["affinity"] = "video"

    before_task_publish.connect(ask)
    try:
        assert ours.place(called(queue="x"), ours.task(affinity="y")).messages == [("video", "", "video")]
    finally:
        before_task_publish.disconnect(ask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "audio"}, "queue= of one call must name the same queue, got: affinity='video', queue='audio'"),
        (
            {"queue": Queue("audio")},
            "queue= of one call must name the same queue, got: affinity='video', queue='audio'",
        ),
        (
            {"routing_key": "a"},
            "routing_key= of one call must name the same queue, got: affinity='video', routing_key=",
        ),
        ({"exchange": "media"}, "exchange= of one call must name the same queue, got: affinity='video', exchange='med"),
    ],
)
def test_call_with_type_and_queue_is_refused(publishers, options, message):
    ours = publishers(OURS)
    task = ours.task()
    refused = [
        lambda: task.apply_async(affinity="video", **options),
        lambda: task.s().set(affinity="video", **options),
        lambda: task.s().set(affinity="video").set(affinity="video", **options),
        lambda: ours.app.send_task("far", affinity=Affinity("video"), **options),
        lambda: task.signature(options={"affinity": {"type": "video"}, **options}).delay(),
        lambda: publish_many(task, [()], affinity="video", **options),
    ]
    for call in refused:
        with pytest.raises(OptionError) as refusal:
            call()
        assert str(refusal.value).startswith("affinity= and " + message)
    assert list(ours.messages()) == []
    task.delay()
    with running(task, ours.first_message()), pytest.raises(OptionError):
        task.retry(affinity="video", **options)
    assert list(ours.messages()) == []


def test_app_with_another_transport_may_combine_options(publishers):
    stock = publishers(None)
    task = stock.task(affinity=7)
    for way in (
        called(queue="audio", affinity="video"),
        lambda _, task: task.s().set(queue="audio", affinity=8).delay(),
        lambda _, task: task.s().set(queue="audio").set(affinity="video").delay(),
        lambda _, task: task.s().set(queue="audio").apply_async(affinity="video"),
        then(called(queue="audio"), retry(affinity="video")),
    ):
        assert stock.place(way, task).messages == [("audio", "", "audio")]


def test_undeclared_queue_is_refused_wherever_it_is_named(publishers):
    conf = CONFS["undeclared"]
    for own, more, options in (
        ({}, {}, {"queue": "other"}),
        ({}, {}, {"affinity": "other"}),
        ({"affinity": "other"}, {}, {}),
        ({}, {"affinity_task_types": {"*": "other"}}, {}),
        ({}, {"task_routes": {"*": {"affinity": "other"}}}, {}),
    ):
        ours = publishers(OURS, **conf, **more)
        with pytest.raises(QueueNotFound, match="Queue 'other' missing from task_queues"):
            ours.task(**own).apply_async(**options)
        assert list(ours.messages()) == []
    if not since.DEFAULT_QUEUE_MAY_BE_UNDECLARED:
        return
    without_default = publishers(OURS, task_queues=[Queue("video")], task_create_missing_queues=False)
    assert without_default.place(called(), without_default.task(affinity="video")).messages == [("video", "", "video")]


def test_shared_and_overridden_tasks_have_the_same_destinations(publishers):
    ours = publishers(OURS)

    class Loud(ours.app.Task):
        def apply_async(self, args=None, kwargs=None, **options):
            return super().apply_async(args, kwargs, **{"queue": "audio", **options})

    @shared_task(name="shared", affinity="video")
    def shared():
        pass

    ours.app.set_current()
    for task, call, queue in (
        (ours.app.tasks["shared"], called(), "video"),
        (shared, called(queue="audio"), "audio"),
        (ours.task(base=Loud, affinity="video"), called(), "audio"),
        (ours.app.tasks["nothing"], called(queue="x"), "x"),
    ):
        assert ours.place(call, task).messages == [(queue, "", queue)]


def test_kombu_messages_take_the_tasks_type_by_default(publishers):
    ours = publishers(OURS)
    ours.task(affinity="video")

    def by_kombu(**options):
        def publish(publisher, _):
            with publisher.app.producer_or_acquire() as producer:
                headers = {"task": "nothing", "id": "an-id"}
                producer.publish([[], {}, {}], headers=headers, serializer="json", **options)

        return publish

    for options, queue in (
        ({"routing_key": "audio"}, "audio"),
        ({"routing_key": "audio", "exchange": ""}, "audio"),
        ({"routing_key": "celery"}, "video"),
        ({}, "video"),
        ({"routing_key": "audio", "affinity": "x"}, "x"),
    ):
        assert ours.place(by_kombu(**options), None).messages == [(queue, "", queue)], options


#: A program that does not import this package: the first call opens the first connection, which imports it.
FIRST = """
import os, sys
from celery import Celery
url, *calls = sys.argv[1:]
ended = []
for number, call in enumerate(calls):
    if not (child := os.fork()):
        app = Celery("first", broker=f"{url}/{number}")
        app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True)

        @app.task(name="task", affinity="video")
        def task(): pass

        assert "celery_affinity" not in sys.modules
        for _ in range(2):
            eval(call)
        os._exit(0)
    ended.append(os.waitpid(child, 0)[1])
sys.exit(any(ended))
"""


FIRST_CALLS = {
    "task.delay()": "video",
    "task.apply_async(queue='audio')": "audio",
    "task.apply_async(queue='celery')": "celery",
    "task.apply_async(affinity='audio')": "audio",
    "task.s().set(queue='celery').delay()": "celery",
    "app.send_task('task', queue='audio')": "audio",
    "app.send_task('task')": "video",
    "app.send_task('task', affinity='audio')": "audio",
}


def test_first_call_of_a_process_has_the_same_destination(valkey, redis_client):
    url = valkey.url.removesuffix("/0")
    subprocess.run([sys.executable, "-c", FIRST, url, *FIRST_CALLS], check=True, timeout=60)
    found = {}
    for number, call in enumerate(FIRST_CALLS):
        with redis.Redis.from_url(f"{url}/{number}") as client:
            found[call] = [client.hget(key, "type").decode() for key in client.scan_iter("*job:*")]
    assert found == {call: [queue] * 2 for call, queue in FIRST_CALLS.items()}
