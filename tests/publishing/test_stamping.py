"""Options that a task may set, the places that may name them, and their precedence."""

import copy
import json
import pickle

import pytest
from celery import Celery, beat, chain
from celery.signals import before_task_publish
from kombu.common import Broadcast
from kombu.utils.json import dumps, loads

from celery_affinity import Affinity, AffinityError, OptionError
from celery_affinity.options.type_names import ACCEPTED
from celery_affinity.publishing.message import PROPERTY

from ..support.apps import app_for
from ..support.stamped import one, published, task


def test_task_sets_its_options(app):
    task(app, affinity="pdf").delay()
    assert one(app) == ("pdf", "queued.0")
    task(app, affinity=Affinity("pdf", priority=5, on_demand=True)).delay()
    assert one(app) == ("pdf", "demand.5")


def test_plain_queues_and_priorities_set_options_too(app):
    plain = task(app)
    plain.delay()
    assert one(app) == ("celery", "queued.0")
    plain.apply_async(queue="excel", priority=10)
    assert one(app) == ("excel", "queued.10")


def test_options_of_a_call_win_over_the_tasks(app):
    pdf = task(app, affinity=Affinity("pdf", priority=5))
    pdf.apply_async(affinity="excel")
    assert one(app) == ("excel", "queued.5")
    pdf.apply_async(affinity=Affinity(priority=7), on_demand=True)
    assert one(app) == ("pdf", "demand.7")
    pdf.apply_async(priority=1)
    assert one(app) == ("pdf", "queued.1")
    task(app, affinity=Affinity("pdf", on_demand=True)).apply_async(on_demand=False)
    assert one(app) == ("pdf", "queued.0")


def test_affinity_wins_over_the_tasks_own_priority(app):
    task(app, affinity=Affinity("pdf", priority=5), priority=2).delay()
    assert one(app) == ("pdf", "queued.5")
    task(app, affinity="pdf", priority=2).delay()
    assert one(app) == ("pdf", "queued.2")


def test_signature_sets_options_of_its_call(app):
    task(app).s().set(affinity=Affinity("pdf", priority=2), on_demand=True).delay()
    assert one(app) == ("pdf", "demand.2")


def test_beat_entries_set_options(app):
    task(app)
    app.conf.beat_schedule = {
        "nightly": {
            "task": "far.away",
            "schedule": 60,
            "options": {"affinity": Affinity("pdf", priority=4), "on_demand": True},
        }
    }
    scheduler = beat.Scheduler(app=app)
    scheduler.apply_async(scheduler.schedule["nightly"], advance=False)
    assert one(app) == ("pdf", "demand.4")


def test_route_sets_options_of_its_calls(app):
    app.conf.task_routes = {
        "by.affinity": {"affinity": "excel", "on_demand": True},
        "by.queue": {"queue": "index", "priority": 3},
    }
    app.send_task("by.affinity")
    assert one(app) == ("excel", "demand.0")
    app.send_task("by.queue")
    assert one(app) == ("index", "queued.3")
    app.send_task("by.queue", affinity="pdf")
    assert one(app) == ("pdf", "queued.3")


def test_producer_without_the_code_sets_types_by_pattern(redis_client, valkey):
    app = app_for(valkey.url, set_as_current=True, affinity_task_types={"proj.pdf.*": "pdf"})
    app.redis = redis_client
    app.send_task("proj.pdf.render")
    assert one(app) == ("pdf", "queued.0")
    app.send_task("proj.pdf.render", affinity="excel")
    assert one(app) == ("excel", "queued.0")
    app.close()


def test_affinity_survives_within_a_message(app):
    first, second = task(app), task(app)
    chain(first.s(), second.s().set(affinity=Affinity("pdf", priority=5))).apply_async()
    ((_, _, _, message),) = published(app)
    (_, _, embed) = json.loads(message["body"])
    (callback,) = embed["chain"]
    app.signature(callback).apply_async()
    assert one(app) == ("pdf", "queued.5")
    assert loads(dumps(Affinity("pdf"))) == {"type": "pdf"}


def test_lower_first_reverses_priorities_of_stock_redis_apps(redis_client, valkey):
    app = app_for(valkey.url, set_as_current=True, affinity_priority_order="lower-first")
    app.redis = redis_client
    task(app).apply_async(priority=0)
    assert one(app) == ("celery", "queued.10")
    task(app).apply_async(priority=9)
    assert one(app) == ("celery", "queued.1")
    app.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "high"}, "priority must be a whole number from 0 to 10, got: 'high'"),
        ({"priority": 5.5}, "priority must be a whole number from 0 to 10, got: 5.5"),
        ({"affinity": ""}, f"affinity must be {ACCEPTED}, got: ''"),
        ({"affinity": "pdf,excel"}, f"affinity must be {ACCEPTED}, got: 'pdf,excel'"),
        ({"affinity": 7}, "affinity must be a type (str) or an Affinity, got: 7"),
        ({"affinity": "x" * 256}, f"affinity must be {ACCEPTED}, got: {'x' * 256!r}"),
        (
            {"affinity": {"typ": "pdf"}},
            "affinity must be a type (str) or an Affinity, got: {'typ': 'pdf'}; did you mean 'type'?",
        ),
        ({"on_demand": "yes"}, "on_demand must be True or False, got: 'yes'"),
    ],
)
def test_invalid_value_is_refused_before_any_publish(app, options, message):
    with pytest.raises(OptionError) as refusal:
        task(app).apply_async(**options)
    assert str(refusal.value) == message
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, AffinityError)
    assert published(app) == []


@pytest.mark.parametrize("priority", ["5", 5.0])
def test_priority_accepts_stock_celerys_forms(app, priority):
    task(app).apply_async(priority=priority)
    assert one(app)[1] == "queued.5"


def test_invalid_affinity_is_refused_where_it_is_written():
    with pytest.raises(OptionError, match=r"priority must be a whole number from 0 to 10, got: 5\.5"):
        Affinity("pdf", priority=5.5)


def test_handler_sets_options_of_a_call(app):
    """The handler may run before or after the handler of this package."""

    def ask(properties, **_):
        properties.update(priority=7, on_demand=True, affinity="excel")

    before_task_publish.connect(ask)
    try:
        task(app, affinity=Affinity("pdf", priority=2)).delay()
    finally:
        before_task_publish.disconnect(ask)
    assert one(app) == ("excel", "demand.7")


def test_handler_may_change_and_copy_all_its_arguments(app):
    heard = []

    def write(headers, properties, body, **_):
        given = {"headers": headers, "properties": properties, "body": body}
        heard.append((json.dumps(given), pickle.dumps(given), copy.deepcopy(given)))

    before_task_publish.connect(write)
    try:
        task(app, affinity="pdf").delay()
    finally:
        before_task_publish.disconnect(write)
    assert len(heard) == 1
    assert one(app) == ("pdf", "queued.0")


def test_broadcast_has_none_of_our_properties(app, producer):
    listener = app.redis.pubsub()
    listener.psubscribe("*all*")
    assert listener.get_message(timeout=5)["type"] == "psubscribe"
    app.amqp.queues.add(Broadcast("all"))
    everybody = app.amqp.queues["all"]
    everybody(producer.channel).declare()
    task(app, affinity="pdf").apply_async(
        queue=everybody, affinity=Affinity(priority=3), on_demand=True, producer=producer
    )
    message = loads(listener.get_message(timeout=5)["data"].decode())
    assert not {"affinity", "on_demand", PROPERTY} & (message["headers"].keys() | message["properties"].keys())
    listener.close()


def test_app_with_another_transport_is_not_changed(redis_client, valkey):
    app = Celery("stock", broker=valkey.url)
    task(app, affinity="pdf").apply_async(priority=6)
    (body,) = redis_client.lrange("celery\x06\x166", 0, -1)
    message = loads(body.decode())
    assert PROPERTY not in message["properties"]
    assert message["properties"]["priority"] == 6
    app.close()
