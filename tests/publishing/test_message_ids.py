"""A call is one job even if a lost reply repeats its publish. Two calls are two jobs, even if they share an id."""

import json

import pytest
from kombu import Exchange, Queue

from celery_affinity.publishing.message import PROPERTY
from celery_affinity.scheduler.scheduler import Scheduler

from ..support.stamped import published, task


def test_two_calls_are_two_jobs(app):
    pdf = task(app, affinity="pdf")
    pdf.apply_async(task_id="same")
    pdf.apply_async(task_id="same")
    assert len(published(app)) == 2


def test_repeated_publish_of_one_call_is_one_job(app, monkeypatch):
    """kombu's publish retry sends the same message again after a lost reply."""
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
    """Publishes whose replies are lost, except every *of_each*-th reply."""

    def __init__(self, monkeypatch, of_each=1):
        self.fresh, publish = [], Scheduler.publish

        def lossy(*args, **kwargs):
            published = publish(*args, **kwargs)
            self.fresh += [each.fresh for each in published]
            if len(self.fresh) % of_each:
                raise ConnectionError("the reply was lost")
            return published

        monkeypatch.setattr(Scheduler, "publish", lossy)


BODY = [[1], {}, {}]


@pytest.mark.parametrize("replies", ["come", "are lost"])
def test_publishes_with_one_headers_dict_are_several_jobs(app, producer, monkeypatch, replies):
    """They are five jobs on stock Celery as well. A publish repeated for a lost reply remains one job."""
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


def test_five_publishes_of_one_celery_message_are_five_jobs(app, producer):
    message = app.amqp.create_task_message("an-id", "nothing", (), {})
    for number in range(5):
        app.amqp.send_task_message(producer, "nothing", message, affinity=f"type{number}")
    assert sorted(type_ for type_, *_ in published(app)) == [f"type{number}" for number in range(5)]


def test_callers_properties_and_declarations_are_not_changed(app, producer):
    channel, headers, properties = producer.channel, {"task": "nothing", "id": "an-id"}, {"on_demand": True}
    for _ in range(5):
        message = channel.prepare_message(json.dumps(BODY), None, "application/json", "utf-8", headers, properties)
        channel.basic_publish(message, exchange="", routing_key="celery")
        assert properties.keys() & {"affinity", "on_demand", PROPERTY} == {"on_demand"}
    assert [lane for _, lane, _, _ in published(app)] == ["demand.0"] * 5
    declare = [app.amqp.queues["celery"]]
    task(app).apply_async(declare=declare)
    assert declare[0] is app.amqp.queues["celery"]


def test_message_with_reused_properties_is_another_job(app, producer, monkeypatch):
    channel, properties = producer.channel, {"delivery_mode": 2}
    lossy = Lossy(monkeypatch, of_each=2)

    def publish(body):
        message = channel.prepare_message(body, None, "application/json", "utf-8", {"task": "nothing"}, properties)
        channel.basic_publish(message, exchange="", routing_key="celery")

    with pytest.raises(ConnectionError):
        publish("[[1], {}, {}]")
    publish("[[2], {}, {}]")
    assert lossy.fresh == [True, True]


def test_copies_for_two_queues_are_two_jobs(app):
    topic = Exchange("news", "topic")
    queues = [Queue("one", topic, routing_key="news.#"), Queue("two", topic, routing_key="news.*")]
    task(app).apply_async(exchange="news", routing_key="news.today", declare=queues)
    assert sorted((type_, lane) for type_, lane, _, _ in published(app)) == [("one", "queued.0"), ("two", "queued.0")]
