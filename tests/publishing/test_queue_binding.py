"""Queues that are bound to a channel once, and still declared by kombu."""

import subprocess
import sys

from kombu import Queue
from kombu.common import Broadcast

from celery_affinity.publishing import routing
from celery_affinity.publishing.routing import BoundOnce, bind_once


def declared_by(app):
    declare = [app.amqp.queues["celery"]]
    bind_once(app, declare)
    return declare[0]


def test_queue_is_bound_once_to_each_channel(app):
    queue = declared_by(app)
    assert isinstance(queue, BoundOnce)
    assert queue == app.amqp.queues["celery"]
    assert declared_by(app) is queue
    with app.connection_for_write() as one, app.connection_for_write() as two:
        bound = queue.bind(one.default_channel)
        assert bound.channel is one.default_channel
        assert queue.bind(one.default_channel) is bound
        assert queue.bind(two.default_channel).channel is two.default_channel


def test_queue_bound_to_another_channel_is_bound_again(app):
    queue = declared_by(app)
    with app.connection_for_write() as one, app.connection_for_write() as two:
        queue.bind(one.default_channel).revive(two.default_channel)
        assert queue.bind(one.default_channel).channel is one.default_channel


def test_replaced_queue_of_the_app_is_bound_again(app):
    first = declared_by(app)
    app.amqp.queues["celery"] = Queue("celery", routing_key="another")
    second = declared_by(app)
    assert second.routing_key == "another"
    with app.connection_for_write() as connection:
        first.bind(connection.default_channel)
        assert second.bind(connection.default_channel).routing_key == "another"


def test_other_queues_are_not_changed(app):
    class OfTheUser(Queue):
        pass

    app.amqp.queues["own"] = OfTheUser("own")
    declare = [Queue("celery"), app.amqp.queues["own"], Broadcast("all")]
    before = list(declare)
    bind_once(app, declare)
    assert all(left is given for left, given in zip(declare, before, strict=True))


def test_publish_still_declares_its_queue_on_each_connection(app):
    @app.task(name="declared", shared=False)
    def task():
        pass

    for _ in range(2):
        app.redis.delete("_kombu.binding.celery")
        with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
            task.apply_async(producer=producer)
            task.apply_async(producer=producer)
        assert app.redis.smembers("_kombu.binding.celery") == {b"celery\x06\x16\x06\x16celery"}


GROWTH = """
import gc, sys, tracemalloc
from celery import Celery

url, transport = sys.argv[1:]
app = Celery(broker=url, set_as_current=False)
app.conf.broker_transport = transport

def publish(numbers):
    for number in numbers:
        app.send_task("task", queue=f"queue {number}", ignore_result=True)
    gc.collect()

publish(range(600))
tracemalloc.start()
publish(range(600, 1100))
print(tracemalloc.get_traced_memory()[0])
"""


def test_producer_of_ever_new_queues_stays_small(valkey, redis_client):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", GROWTH, valkey.url, transport],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # without the warnings of unserved types
            text=True,
        )
        for transport in ("redis", "celery_affinity:Transport")
    ]
    stock, ours = (int(each.communicate(timeout=120)[0]) for each in started)
    print(f"500 queues: {stock / 1e6:.2f} MB with stock Celery, {ours / 1e6:.2f} MB here")
    assert ours < 1.5 * stock


def test_number_of_cached_queues_is_limited(app):
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for number in range(2_000):
            declare = [app.amqp.queues[f"queue {number}"]]
            bind_once(app, declare)
            declare[0].bind(channel)
        assert len(channel.bound_queues) <= routing._MAX_QUEUES
        assert len(routing._QUEUES[app]) <= routing._MAX_QUEUES
        assert declare[0].bind(channel) is declare[0].bind(channel), "the last one is"
