"""Options that a task may ask for, the places that may say them, and the place that wins."""

# Longer than 300 lines: every place where an option may be said, in the order in which they count.

import copy
import json
import pickle

import pytest
from celery import Celery, beat, chain
from celery.exceptions import Ignore, Retry
from celery.signals import before_task_publish
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.utils.json import dumps, loads

from celery_affinity import Affinity, AffinityError, OptionError
from celery_affinity.client.stamp import PROPERTY
from celery_affinity.rules.type_name import ACCEPTED
from celery_affinity.server.scheduler import Scheduler

from ..support.messages import running


@pytest.fixture
def app(redis_client, valkey):
    """An app whose messages are looked at, not run."""
    app = Celery("stamped", broker=valkey.url)
    app.conf.broker_transport = "celery_affinity:Transport"
    app.redis = redis_client
    yield app
    app.close()


def published(app):
    """Return (type, lane, header) of every job that was published since the last call."""
    found = []
    for key in app.redis.scan_iter("*job:*"):
        job = app.redis.hgetall(key)
        message = loads(app.redis.get(key.replace(b"job:", b"message:")).decode())
        found.append((job[b"type"].decode(), job[b"lane"].decode(), message["properties"].get(PROPERTY, {}), message))
    app.redis.flushdb()
    return found


def one(app):
    ((type_, lane, _, _),) = published(app)
    return type_, lane


def task(app, **options):
    def nothing():
        pass

    return app.task(name=f"task{len(app.tasks)}", shared=False, **options)(nothing)


def test_a_task_says_what_it_needs(app):
    task(app, affinity="pdf").delay()
    assert one(app) == ("pdf", "queued.0")
    task(app, affinity=Affinity("pdf", priority=5, on_demand=True)).delay()
    assert one(app) == ("pdf", "demand.5")


def test_plain_queues_and_priorities_say_it_too(app):
    plain = task(app)
    plain.delay()
    assert one(app) == ("celery", "queued.0")
    plain.apply_async(queue="excel", priority=10)
    assert one(app) == ("excel", "queued.10")


def test_the_options_of_a_call_win_over_the_tasks_own(app):
    pdf = task(app, affinity=Affinity("pdf", priority=5))
    pdf.apply_async(affinity="excel")
    assert one(app) == ("excel", "queued.5")
    pdf.apply_async(affinity=Affinity(priority=7), on_demand=True)
    assert one(app) == ("pdf", "demand.7")
    pdf.apply_async(priority=1)
    assert one(app) == ("pdf", "queued.1")
    task(app, affinity=Affinity("pdf", on_demand=True)).apply_async(on_demand=False)
    assert one(app) == ("pdf", "queued.0")


def test_a_priority_of_the_tasks_own_option_comes_after_its_affinity(app):
    task(app, affinity=Affinity("pdf", priority=5), priority=2).delay()
    assert one(app) == ("pdf", "queued.5")
    task(app, affinity="pdf", priority=2).delay()
    assert one(app) == ("pdf", "queued.2")


def test_signatures_say_it(app):
    task(app).s().set(affinity=Affinity("pdf", priority=2), on_demand=True).delay()
    assert one(app) == ("pdf", "demand.2")


def test_beat_entries_say_it(app):
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


def test_routes_say_it(app):
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


def test_a_producer_without_the_code_names_types_by_pattern(redis_client, valkey):
    app = Celery("far", broker=valkey.url)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_task_types={"proj.pdf.*": "pdf"})
    app.redis = redis_client
    app.send_task("proj.pdf.render")
    assert one(app) == ("pdf", "queued.0")
    app.send_task("proj.pdf.render", affinity="excel")
    assert one(app) == ("excel", "queued.0")
    app.close()


def test_an_affinity_survives_within_a_message(app):
    first, second = task(app), task(app)
    chain(first.s(), second.s().set(affinity=Affinity("pdf", priority=5))).apply_async()
    ((_, _, _, message),) = published(app)
    (_, _, embed) = json.loads(message["body"])
    (callback,) = embed["chain"]
    app.signature(callback).apply_async()
    assert one(app) == ("pdf", "queued.5")
    assert loads(dumps(Affinity("pdf"))) == {"type": "pdf", "priority": None, "on_demand": None}


def test_lower_first_turns_priorities_for_apps_that_come_from_stock_redis(redis_client, valkey):
    app = Celery("turned", broker=valkey.url)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_priority_order="lower-first")
    app.redis = redis_client
    task(app).apply_async(priority=0)
    assert one(app) == ("celery", "queued.10")
    task(app).apply_async(priority=9)
    assert one(app) == ("celery", "queued.1")
    app.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 11}, "priority must be a whole number from 0 to 10, got: 11"),
        ({"priority": -1}, "priority must be a whole number from 0 to 10, got: -1"),
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
def test_a_bad_value_is_refused_at_the_caller_and_nothing_is_published(app, options, message):
    with pytest.raises(OptionError) as refusal:
        task(app).apply_async(**options)
    assert str(refusal.value) == message
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, AffinityError)
    assert published(app) == []


@pytest.mark.parametrize("priority", ["5", 5.0])
def test_a_priority_may_be_written_as_stock_celery_takes_it(app, priority):
    task(app).apply_async(priority=priority)
    assert one(app)[1] == "queued.5"


def test_a_bad_affinity_is_refused_where_it_is_written():
    with pytest.raises(OptionError, match="priority must be a whole number from 0 to 10, got: 11"):
        Affinity("pdf", priority=11)


@pytest.fixture
def pdf(app):
    return task(app, affinity=Affinity("pdf", priority=2))


@pytest.fixture
def first_try(app, pdf):
    """Return a message with other options than its task."""
    pdf.apply_async(affinity=Affinity("excel", on_demand=True), priority=7)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    return message


def test_a_retry_keeps_what_its_first_try_had(app, pdf, first_try):
    with running(pdf, first_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    ((type_, lane, _, second_try),) = published(app)
    assert (type_, lane) == ("excel", "demand.7")
    with running(pdf, second_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


def test_a_retry_may_ask_for_another_thing(app, pdf, first_try):
    with running(pdf, first_try), pytest.raises(Retry):
        pdf.retry(countdown=0, affinity="index", on_demand=False, priority=1)
    assert one(app) == ("index", "queued.1")


def test_what_is_published_again_under_the_id_of_the_run_is_a_retry_as_well(app, pdf, first_try):
    with running(pdf, first_try) as request:
        pdf.signature_from_request(request).apply_async()
    assert one(app) == ("excel", "demand.7")


def test_what_a_task_publishes_has_what_it_asks_for_itself(app, pdf, first_try):
    other = task(app, affinity="index")
    with running(pdf, first_try) as request:
        assert request.headers is None
        for child, options in (
            (other, {}),
            (other, {"headers": request.headers}),
            (other, {"task_id": request.id}),
        ):
            child.apply_async(**options)
            assert one(app) == ("index", "queued.0")
        pdf.delay()
        assert one(app) == ("pdf", "queued.2")


def test_what_replaces_a_task_is_no_retry(app, pdf, first_try):
    """A caller that waits for the task waits for its replacement; all other options are the replacement's own."""
    with running(pdf, first_try), pytest.raises(Ignore):
        pdf.replace(pdf.s())
    assert one(app) == ("pdf", "demand.2")
    with running(pdf, first_try), pytest.raises(Ignore):
        pdf.replace(pdf.s().set(on_demand=False))
    assert one(app) == ("pdf", "queued.2")


def test_a_retry_of_what_stock_celery_sent_keeps_its_mode(app, pdf, first_try):
    del first_try["properties"][PROPERTY]
    first_try["properties"]["on_demand"] = True
    with running(pdf, first_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "demand.7")


@pytest.mark.parametrize(
    "kept", [None, "excel", 7, {"type": 7}, {"type": ""}, {"on_demand": "yes"}, [["type", "excel"]]]
)
def test_what_is_not_ours_under_our_name_says_nothing(app, pdf, first_try, kept):
    first_try["properties"][PROPERTY] = kept
    with running(pdf, first_try), pytest.raises(Retry):
        pdf.retry(countdown=0)
    assert one(app) == ("excel", "queued.7")


def test_headers_are_the_users_alone(app, pdf):
    """A header named as an option of ours, or as our property, arrives as on stock."""
    given = {"affinity": ["a", "list"], PROPERTY: {"type": "excel"}, "on_demand": "yes", "tenant": "acme"}
    pdf.apply_async(headers=given)
    ((type_, lane, _, message),) = published(app)
    assert (type_, lane) == ("pdf", "queued.2")
    with running(pdf, message) as request:
        assert request.headers == given


def test_two_calls_are_two_jobs(app):
    pdf = task(app, affinity="pdf")
    pdf.apply_async(task_id="same")
    pdf.apply_async(task_id="same")
    assert len(published(app)) == 2


def test_a_repeated_publish_of_one_call_is_one_job(app, monkeypatch):
    """kombu's publish retry puts the same message again after a lost reply."""
    publish, replies = Scheduler.publish, []

    def lossy(*args, **kwargs):
        replies.append(publish(*args, **kwargs))
        if len(replies) == 1:
            raise ConnectionError("the reply was lost")
        return replies[-1]

    monkeypatch.setattr(Scheduler, "publish", lossy)
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        task(app, affinity="pdf").apply_async(producer=producer, retry=True, retry_policy={"interval_start": 0})
    assert [reply.fresh for (reply,) in replies] == [True, False]
    assert len(published(app)) == 1


class Lossy:
    """Publishes whose replies are lost, except each *of_each*-th."""

    def __init__(self, monkeypatch, of_each=1):
        self.fresh, publish = [], Scheduler.publish

        def lossy(*args, **kwargs):
            published = publish(*args, **kwargs)
            self.fresh += [each.fresh for each in published]
            if len(self.fresh) % of_each:
                raise ConnectionError("the reply was lost")
            return published

        monkeypatch.setattr(Scheduler, "publish", lossy)


@pytest.fixture
def producer(app):
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        yield producer


BODY = [[1], {}, {}]


@pytest.mark.parametrize("replies", ["come", "are lost"])
def test_five_publishes_with_one_dict_of_headers_are_five_jobs(app, producer, monkeypatch, replies):
    """Stock Celery has five as well; a publish repeated for its lost reply is still one job."""
    lossy = Lossy(monkeypatch, of_each=2) if replies == "are lost" else None
    headers = {"task": "nothing", "id": "an-id", "affinity": "the user's"}
    as_it_was = dict(headers)
    for _ in range(5):
        producer.publish(
            BODY,
            headers=headers,
            serializer="json",
            routing_key="celery",
            retry=True,
            retry_policy={"interval_start": 0},
        )
        assert headers == as_it_was
    assert lossy is None or lossy.fresh == [True, False] * 5
    found = published(app)
    assert len(found) == 5
    assert {message["headers"]["affinity"] for _, _, _, message in found} == {"the user's"}


def test_five_publishes_of_one_message_of_celerys_are_five_jobs(app, producer):
    message = app.amqp.create_task_message("an-id", "nothing", (), {})
    for number in range(5):
        app.amqp.send_task_message(producer, "nothing", message, affinity=f"type{number}")
    assert sorted(type_ for type_, *_ in published(app)) == [f"type{number}" for number in range(5)]


def test_properties_and_declarations_of_the_callers_are_left_as_they_are(app, producer):
    channel, headers, properties = producer.channel, {"task": "nothing", "id": "an-id"}, {"on_demand": True}
    for _ in range(5):
        message = channel.prepare_message(json.dumps(BODY), None, "application/json", "utf-8", headers, properties)
        channel.basic_publish(message, exchange="", routing_key="celery")
        assert properties.keys() & {"affinity", "on_demand", PROPERTY} == {"on_demand"}
    assert [lane for _, lane, _, _ in published(app)] == ["demand.0"] * 5
    declare = [app.amqp.queues["celery"]]
    task(app).apply_async(declare=declare)
    assert declare[0] is app.amqp.queues["celery"]


def test_another_message_with_the_properties_of_one_that_failed_is_another_job(app, producer, monkeypatch):
    channel, properties = producer.channel, {"delivery_mode": 2}
    lossy = Lossy(monkeypatch, of_each=2)

    def publish(body):
        message = channel.prepare_message(body, None, "application/json", "utf-8", {"task": "nothing"}, properties)
        channel.basic_publish(message, exchange="", routing_key="celery")

    with pytest.raises(ConnectionError):
        publish("[[1], {}, {}]")
    publish("[[2], {}, {}]")
    assert lossy.fresh == [True, True]


def test_a_message_that_is_moved_keeps_what_its_call_asked_for(app, producer, pdf, first_try):
    """`celery.contrib.migrate` moves messages so: with kombu alone, and the properties of the message."""
    kept = {name: first_try["properties"][name] for name in (PROPERTY, "priority", "correlation_id")}
    options = {"headers": first_try["headers"], "content_type": "application/json", **kept}
    producer.publish(first_try["body"], **first_try["properties"]["delivery_info"], **options)
    assert one(app) == ("excel", "demand.7")
    producer.publish(first_try["body"], exchange="", routing_key="index", **options)
    assert one(app) == ("index", "demand.7")


def test_a_handler_sets_what_a_call_asks_for(app):
    """The handler may come before ours, or after."""

    def ask(properties, **_):
        properties.update(priority=7, on_demand=True, affinity="excel")

    before_task_publish.connect(ask)
    try:
        task(app, affinity=Affinity("pdf", priority=2)).delay()
    finally:
        before_task_publish.disconnect(ask)
    assert one(app) == ("excel", "demand.7")


def test_a_handler_may_write_and_copy_all_that_it_is_given(app):
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


def test_a_broadcast_has_nothing_of_ours(app, producer):
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


def test_the_copies_for_two_queues_are_two_jobs(app):
    topic = Exchange("news", "topic")
    queues = [Queue("one", topic, routing_key="news.#"), Queue("two", topic, routing_key="news.*")]
    task(app).apply_async(exchange="news", routing_key="news.today", declare=queues)
    assert sorted((type_, lane) for type_, lane, _, _ in published(app)) == [("one", "queued.0"), ("two", "queued.0")]


def test_an_app_with_another_transport_is_left_alone(redis_client, valkey):
    app = Celery("stock", broker=valkey.url)
    task(app, affinity="pdf").apply_async(priority=6)
    (body,) = redis_client.lrange("celery\x06\x166", 0, -1)
    message = loads(body.decode())
    assert PROPERTY not in message["properties"]
    assert message["properties"]["priority"] == 6
    app.close()
