"""Routes, exchanges, serializers, and messages without tasks."""

import contextlib

from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from ...support.apps import app_for
from ...support.processes import wait_until
from . import scenario
from .side import TRANSPORT


@scenario
def task_request(side):
    request_of = side.tasks().request_of
    return [
        side.outcome(each)
        for each in (
            request_of.delay(),
            request_of.apply_async(countdown=0.2),
            request_of.apply_async(expires=60, time_limit=50, soft_time_limit=40),
            request_of.apply_async(headers={"x_custom": "mine"}, shadow="another name", argsrepr="hidden"),
            request_of.apply_async(queue="routed"),
            request_of.apply_async(serializer="pickle", compression="gzip"),
        )
    ]


@scenario
def serializers(side):
    echo = side.tasks().echo
    return [
        side.outcome(echo.apply_async(("ä", 1, None), {"key": [1.5]}, serializer=serializer, compression=compression))
        for serializer, compression in (
            ("json", None),
            ("pickle", None),
            ("yaml", None),
            ("msgpack", None),
            ("json", "zlib"),
            ("pickle", "bzip2"),
        )
    ]


@scenario
def batch(side):
    echo, producers = side.tasks().echo, side.app.producer_pool
    with producers.acquire(block=True) as producer:
        if not hasattr(producer, "batch"):
            return "kombu before 5.7 has no batches"
        with producer.batch(max_size=4) as batch:
            results = [echo.apply_async((number,), producer=producer) for number in range(6)]
            batch.flush()
            refused = []
            try:
                with producer.batch():
                    refused.append(echo.apply_async(("never",), producer=producer))
                    raise ValueError("the caller's")
            except ValueError:
                pass
        supports = producer.supports_batch_publish
    return supports, [side.outcome(each) for each in results], [each.state for each in refused]


@scenario
def large_message(side):
    return side.outcome(side.tasks().echo.delay("x" * 3_000_000))[1][0][0] == "x" * 3_000_000


@scenario
def routes(side):
    tasks = side.tasks()
    return [
        side.outcome(each)
        for each in (
            tasks.routed.delay(),
            tasks.request_of.apply_async(queue=Queue("routed", routing_key="routed")),
            tasks.request_of.apply_async(queue="topics", routing_key="news.today"),
            tasks.request_of.apply_async(queue="with space/and.dot"),
        )
    ]


@scenario
def message_for_two_queues(side):
    key = "both"
    side.tasks().note.apply_async((key, "ran"), exchange="both", routing_key="key")
    return side.records(key, 2)


@scenario
def broadcast_reaches_each_worker_once(side):
    # Celery does not declare the exchange of a Broadcast on publish, and then kombu treats it as a direct exchange.
    declare = [side.app.amqp.queues["everybody"].exchange]
    with side.running_worker("second", "everybody", "second", pool="solo"):
        for queue in ("celery", "second"):  # a worker that runs a task has subscribed
            side.outcome(side.tasks().add.apply_async((1, 1), queue=queue))
        side.tasks().tell.apply_async(("everybody",), declare=declare)
        side.tasks().tell.apply_async(("everybody",), queue="everybody", declare=declare)
        side.records("everybody", 4)
        side.outcome(side.tasks().add.delay(1, 1))
        workers = side.current_records("everybody")
        return sorted(workers.count(each) for each in set(workers))


@scenario
def app_without_task_code(side):
    app = app_for(side.url, result_backend=side.url, broker_transport=TRANSPORT[side.name])
    result = app.send_task("parity.add", (1, 2))
    other = app.send_task("parity.request_of", queue="routed", priority=5, headers={"x_custom": "mine"})
    late = app.send_task("parity.add", (1, 2), countdown=0.3, expires=60)
    signed = app.signature("parity.add", args=(1, 1), link=app.signature("parity.add", args=(1,))).apply_async()
    ends = [side.outcome(each) for each in (result, other, late, signed)]
    app.close()
    return ends


@scenario
def the_first_message_protocol(side):
    app = side.new_app(task_protocol=1)
    tasks = side.tasks(app)
    key = "protocol"
    ends = [
        side.outcome(tasks.add.delay(1, 2)),
        side.outcome(tasks.add.apply_async((1, 2), countdown=0.3)),
        side.outcome(tasks.third_time_lucky.delay()),
        side.failure(tasks.add.apply_async((1, 1), expires=-1)),
    ]
    tasks.add.apply_async((1, 2), link=tasks.note.si(key, "linked"))
    ends.append(side.records(key, 1))
    app.close()
    return ends


@scenario
def ways_to_publish(side):
    tasks = side.tasks()
    with side.app.connection_for_write() as connection:
        by_connection = tasks.add.apply_async((1, 1), connection=connection)
        with side.app.amqp.Producer(connection) as producer:
            by_producer = tasks.add.apply_async((2, 1), producer=producer)
        with side.app.producer_or_acquire() as producer:
            pooled = tasks.add.apply_async((3, 1), producer=producer, retry=False)
    quick = tasks.add.apply_async((4, 1), retry=True, retry_policy={"max_retries": 1})
    plain = side.new_app(broker_pool_limit=0)
    poolless = side.tasks(plain).add.delay(5, 1)
    ends = [side.outcome(each) for each in (by_connection, by_producer, pooled, quick, poolless)]
    plain.close()
    return ends


@scenario
def unreachable_broker(side):
    app = side.new_app(broker_url="redis://127.0.0.1:1/0", task_publish_retry_policy={"max_retries": 0})
    try:
        side.tasks(app).quiet.delay("never")
    except OperationalError as exc:
        return type(exc).__name__
    finally:
        app.close()


@scenario
def simple_queue(side):
    key = "simple"
    with side.app.connection_for_write() as connection:
        queue = connection.SimpleQueue(key)
        for number in range(3):
            queue.put({"number": number})
        waiting = queue.qsize()
        got = []
        for _ in range(3):
            message = queue.get(timeout=10)
            got.append(message.payload)
            message.ack()
        try:
            queue.get_nowait()
        except queue.Empty:
            got.append("empty")
        queue.close()
    return waiting, got


@scenario
def custom_consumers(side):
    """Read and requeue messages with plain kombu, from a topic and a fanout exchange."""
    name = "own"
    topic = Queue(f"{name}-topic", Exchange(f"{name}-topics", type="topic"), routing_key="a.*")
    fanout = Broadcast(f"{name}-fanout", queue=f"{name}-fanout")
    seen = []

    def on_message(body, message):
        seen.append([body, bool(message.delivery_info.get("redelivered"))])
        message.ack() if len(seen) > 1 else message.requeue()

    with (
        side.app.connection_for_write() as connection,
        connection.Consumer([topic, fanout], callbacks=[on_message], accept=["json"]),
    ):
        wait_until(lambda: _is_bound(side, f"{name}-fanout"), 10, "it is bound")
        producer = connection.Producer()
        producer.publish({"to": "topic"}, exchange=f"{name}-topics", routing_key="a.b", declare=[topic])
        _drain(connection, lambda: len(seen) >= 2)
        producer.publish({"to": "fanout"}, exchange=fanout.exchange, declare=[fanout])
        _drain(connection, lambda: len(seen) >= 3)
    return seen


def _is_bound(side, name):
    return side.redis.exists(f"_kombu.binding.{name}")


def _drain(connection, enough):
    def drained():
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        return enough()

    wait_until(drained, 10, "it was consumed")


@scenario(differs="only workers get jobs, which are not in a list")
def task_message_read_with_kombu(side):
    """Get a task message with kombu, like scripts that move or inspect messages."""
    side.app.send_task("parity.add", (1, 1), queue="nobody")
    with side.app.connection_for_write() as connection:
        queue = Queue("nobody", channel=connection.default_channel)
        message = queue.get()
        found = message is not None and message.headers["task"]
        if message is not None:
            message.ack()
        return found, queue.get() is None
