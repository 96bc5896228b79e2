"""kombu's own batches, ``Producer.batch``: jobs are sent together, and a failed batch is sent again."""

import kombu
import pytest
import redis
from kombu.utils.json import loads

from celery_affinity import Affinity, OptionError
from celery_affinity.publishing.message import decode_message
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.full_server import full_server
from ..support.processes import wait_until

if kombu.VERSION[:2] < (5, 7):
    pytest.skip("kombu before 5.7 has no batches", allow_module_level=True)

from kombu import Queue
from kombu.exceptions import BatchPublishError


@pytest.fixture
def task(app):
    @app.task(name="batched", shared=False, affinity="pdf")
    def batched(number):
        return number

    return batched


@pytest.fixture
def producer(app):
    with app.producer_pool.acquire(block=True) as producer:
        yield producer


def waiting(app):
    """Return the first arguments of the pending jobs, in order."""
    return [loads(message["body"])[0][0] for message in messages(app)]


def messages(app):
    ids = app.redis.zrange(Keys().key("lane", "pdf", "queued.0"), 0, -1)
    return [decode_message(app.redis.get(Keys().key("message", job_id.decode()))) for job_id in ids]


def test_transport_supports_batches_of_kombu(producer):
    assert producer.supports_batch_publish
    _ = producer.channel
    assert producer.supports_batch_publish


def test_batch_is_sent_in_order_when_it_ends(app, task, producer):
    with producer.batch():
        for number in range(70):
            task.apply_async((number,), producer=producer)
        assert waiting(app) == []
    assert waiting(app) == list(range(70))


@pytest.fixture
def wire(monkeypatch):
    """Return the list of messages from and to the server after this point: "sent", "read", "read", "sent" ..."""
    happened = []

    def noted(name, word):
        original = getattr(redis.connection.AbstractConnection, name)

        def noting(*args, **kwargs):
            happened.append(word)
            return original(*args, **kwargs)

        monkeypatch.setattr(redis.connection.AbstractConnection, name, noting)

    noted("send_packed_command", "sent")
    noted("read_response", "read")
    return happened


def test_batch_is_one_round_trip(app, task, producer, wire):
    task.apply_async((0,), producer=producer)
    with producer.batch():
        for number in range(100):
            task.apply_async((number,), producer=producer)
        wire.clear()
    assert wire == [*["sent"] * 4, *["read"] * 4], "25 jobs a command, all sent before the first reply is read"
    assert len(waiting(app)) == 101


def test_reply_is_read_when_the_next_batch_is_full(app, task, producer, wire):
    task.apply_async((0,), producer=producer)
    with producer.batch(max_size=3):
        wire.clear()
        for number in range(1, 6):
            task.apply_async((number,), producer=producer)
        assert wire == ["sent"]
        task.apply_async((6,), producer=producer)
        assert wire == ["sent", "read", "sent"]
    assert wire == ["sent", "read", "sent", "read"]
    assert waiting(app) == list(range(7))


def test_batch_works_with_one_allowed_connection(app, task):
    app.conf.broker_transport_options = {"max_connections": 1}
    with app.producer_pool.acquire(block=True) as producer:
        with producer.batch(max_size=3):
            for number in range(7):
                task.apply_async((number,), producer=producer, declare=[Queue(f"queue {number}")])
        assert waiting(app) == list(range(7))
        assert producer.channel.pool.max_connections == 1


def test_batch_is_sent_when_full_and_when_flushed(app, task, producer):
    with producer.batch(max_size=3) as batch:
        for number in range(6):
            task.apply_async((number,), producer=producer)
        wait_until(lambda: waiting(app) == list(range(6)), 10, "two full batches arrive")
        task.apply_async((6,), producer=producer)
        assert waiting(app) == list(range(6))
        batch.flush()
        assert waiting(app) == list(range(7))


def test_unsent_jobs_of_a_failed_batch_are_dropped(app, task, producer, wire):
    def publish_and_fail():
        with producer.batch(max_size=2):
            task.apply_async((0,), producer=producer)
            wire.clear()
            for number in (1, 2):
                task.apply_async((number,), producer=producer)
            raise ValueError("the caller's")

    with pytest.raises(ValueError, match="the caller's"):
        publish_and_fail()
    assert wire == ["sent", "read"], "what was sent is there"
    assert waiting(app) == [0, 1]


def test_refused_call_leaves_the_others_in_the_batch(app, task, producer):
    with producer.batch():
        task.apply_async((1,), producer=producer)
        with pytest.raises(OptionError, match="priority"):
            task.apply_async((2,), producer=producer, priority="high")
        task.apply_async((3,), producer=producer)
    assert waiting(app) == [1, 3]


def test_different_jobs_are_sent_in_one_batch(app, task, producer):
    with producer.batch():
        task.apply_async((1,), producer=producer, affinity=Affinity("excel", priority=5))
        task.apply_async((2,), producer=producer, countdown=60)
        task.apply_async((3,), producer=producer, on_demand=True)
    status = Report(Reader(app.redis, Keys())).status()
    assert {each.type: each.pending for each in status.types} == {"excel": 1, "pdf": 1}
    assert status.scheduled == 1
    assert app.redis.zcard(Keys().key("lane", "pdf", "demand.0")) == 1


def test_batch_resent_after_a_lost_reply_makes_no_duplicates(app, task, producer, monkeypatch):
    calls = []

    def noting(name, *, loses=False):
        original = getattr(Scheduler, name)

        def noted(*args):
            calls.append(original(*args))
            if loses:
                raise redis.ConnectionError("the reply was lost")
            return calls[-1]

        monkeypatch.setattr(Scheduler, name, noted)

    noting("receive_publish", loses=True)
    noting("publish")
    with producer.batch():
        for number in range(30):
            task.apply_async((number,), producer=producer)
    assert [{each.fresh for each in call} for call in calls] == [{True}, {False}]
    assert waiting(app) == list(range(30))


def test_batch_that_cannot_be_sent_may_be_flushed_later(app, task, producer, monkeypatch):
    publish = Scheduler.publish

    def in_part(self, *jobs):
        publish(self, *jobs[:10])
        raise redis.ConnectionError("away")

    def not_at_all(*_):
        raise redis.ConnectionError("away")

    with producer.batch(max_size=20) as batch:
        monkeypatch.setattr(Scheduler, "publish", in_part)
        monkeypatch.setattr(Scheduler, "send_publish", not_at_all)
        for number in range(30):  # the batch tries to send 20
            task.apply_async((number,), producer=producer)
        with pytest.raises(BatchPublishError, match=r"30 jobs may have been published, or not: flush again"):
            batch.flush()
        monkeypatch.undo()
        assert waiting(app) == list(range(10))
        batch.flush()
        assert waiting(app) == list(range(30))


def test_connection_cut_in_between_does_not_fail_a_batch(app, task, producer):
    with producer.batch():
        task.apply_async((1,), producer=producer)
        app.redis.client_kill_filter(_type="normal", skipme=True)
    assert waiting(app) == [1]


def test_batch_refused_by_a_full_server_is_sent_later(app, task, producer):
    with producer.batch() as batch:
        task.apply_async((1,), producer=producer)
        with full_server(app.redis):
            with pytest.raises(BatchPublishError) as failure:
                batch.flush()
            assert isinstance(failure.value.__cause__, redis.OutOfMemoryError)
    assert waiting(app) == [1]


def test_unscheduled_queues_are_batched_like_on_stock(app, task, producer):
    app.conf.affinity_queues = ["pdf"]
    with producer.batch(max_size=3):
        task.apply_async((1,), producer=producer, queue="plain", affinity="plain")
        task.apply_async((2,), producer=producer)
        assert app.redis.llen("plain") == 0
    assert waiting(app) == [2]
    (left,) = app.redis.lrange("plain", 0, -1)
    assert loads(left.decode())["properties"]["body_encoding"] == "base64", "as stock Celery sends it"


def test_events_are_sent_in_a_batch(app, producer):
    listener = app.redis.pubsub()
    listener.psubscribe("*celeryev*")
    assert listener.get_message(timeout=5)["type"] == "psubscribe"
    with producer.batch(), app.events.default_dispatcher() as dispatcher:
        dispatcher.publish("worker-custom", {}, producer)
        assert listener.get_message(timeout=0.2) is None
    assert listener.get_message(timeout=5)["type"] == "pmessage"
    listener.close()


def test_failed_commands_are_not_sent_again(app, task, producer, monkeypatch):
    """As on stock Celery, nothing identifies a message that was pushed to a list twice."""
    app.conf.affinity_queues = ["pdf"]
    task.apply_async((0,), producer=producer, queue="plain", affinity="plain")  # declares the queue
    app.redis.set("plain", "no list")
    with producer.batch() as batch:
        task.apply_async((1,), producer=producer, queue="plain", affinity="plain")
        with pytest.raises(BatchPublishError, match="messages that are no jobs"):
            batch.flush()
        app.redis.delete("plain")
        with pytest.raises(BatchPublishError, match="cannot be used after a failure"):
            batch.flush()
        batch.state.abort()
    assert not app.redis.exists("plain")


@pytest.mark.parametrize(("end", "said"), [("close", "closed"), ("discard", "aborted")])
def test_batch_accepts_nothing_after_its_end(producer, end, said):
    batch = producer.channel.create_publish_batch(max_size=5)
    getattr(batch, end)()
    with pytest.raises(RuntimeError, match=said):
        batch.flush()


def test_unserved_types_are_warned_of_once(app, task, producer, caplog):
    with producer.batch():
        for number in range(30):
            task.apply_async((number,), producer=producer, affinity="nobody serves this batch")
    assert caplog.text.count("No live worker serves type 'nobody serves this batch'") == 1
