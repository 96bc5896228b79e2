"""A scheduled queue ignores queue arguments that make a broker drop jobs, and a warning names the argument."""

import pytest
from kombu import Queue
from kombu.transport.base import RABBITMQ_QUEUE_ARGUMENTS

from celery_affinity.publishing import app_config
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.transport import channel

from ..support.apps import APP
from ..support.fleet import MixedFleet

#: Queue arguments -> name and value in the warning.
WITHOUT_EFFECT = [
    ({"expires": 0.001}, "x-expires", 1),
    ({"queue_arguments": {"x-expires": 1}}, "x-expires", 1),
    ({"queue_arguments": {"x-expires": "soon"}}, "x-expires", "soon"),
    ({"message_ttl": 0.001}, "x-message-ttl", 1),
    ({"max_length": 1}, "x-max-length", 1),
    ({"max_length_bytes": 1}, "x-max-length-bytes", 1),
]


@pytest.fixture
def app(load_app, valkey, redis_client, monkeypatch):
    app = load_app(APP)
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(queues=["pdf*"]))
    monkeypatch.setattr(channel, "_warned", set())
    queues = dict(app.amqp.queues)
    yield app
    app.amqp.queues.clear()
    app.amqp.queues.update(queues)


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, app):
    return MixedFleet(valkey, redis_client, tmp_path, app)


def warnings_in(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING" and "x-" in each.getMessage()]


def test_queue_with_expires_keeps_its_jobs(fleet, app, caplog):
    app.amqp.queues.add(Queue("pdf", expires=0.001))
    for number in range(3):
        fleet.send(number, "pdf")
    assert Reader(fleet.redis, Keys()).pending("pdf") == 3
    (warning,) = warnings_in(caplog)
    assert warning == (
        "Queue 'pdf' is declared with x-expires=1, which has no effect: its jobs are kept. "
        "Use expires= of a task or of a call instead"
    )


def test_each_argument_that_drops_jobs_is_logged_once(app, caplog):
    for number, (arguments, name, value) in enumerate(WITHOUT_EFFECT):
        caplog.clear()
        queue = f"pdf-{number}"
        for _ in range(2):
            app.amqp.queues.add(Queue(queue, **arguments))
            with app.connection_for_write() as connection:
                app.amqp.queues[queue](connection.default_channel).declare()
        (warning,) = warnings_in(caplog)
        assert warning.startswith(f"Queue {queue!r} is declared with {name}={value!r}, which has no effect"), arguments


def test_other_arguments_and_queues_give_no_warning(app, caplog):
    others = {"max_priority": 10, "durable": False, "exclusive": True, "auto_delete": True}
    app.amqp.queues.add(Queue("pdf", **others, queue_arguments={"x-queue-mode": 1}))
    app.amqp.queues.add(Queue("mail", expires=9))
    with app.connection_for_write() as connection:
        for queue in (app.amqp.queues["pdf"], app.amqp.queues["mail"], Queue("pdf.reply.celery.pidbox", expires=9)):
            queue(connection.default_channel).declare()
    assert warnings_in(caplog) == []


def test_unscheduled_queue_expires_like_on_stock_celery(fleet, app, caplog):
    app.amqp.queues.add(Queue("mail", expires=50))
    fleet.send("job", "mail")
    assert 0 < fleet.redis.pttl("mail") <= 50_000
    assert warnings_in(caplog) == []


def test_every_queue_argument_of_kombu_is_handled():
    dropping = {RABBITMQ_QUEUE_ARGUMENTS[name][0] for name in RABBITMQ_QUEUE_ARGUMENTS} - {"x-max-priority"}
    assert set(channel.INSTEAD) == dropping
