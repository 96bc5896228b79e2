"""Ways to publish, and the destinations of their messages in queues, signals and events."""

import base64
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from celery import Celery, beat
from celery.exceptions import Retry
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Queue, serialization
from kombu.utils.json import loads

from celery_affinity import publish_many

from .messages import running

#: Queues of a topic exchange, and other queues.
TOPIC = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("news", Exchange("media", "topic"), routing_key="news.all"),
    Queue("audio", Exchange("media", "topic"), routing_key="audio.#"),
    Queue("video"),
]


class Events:
    """An event dispatcher that records the destinations in Celery's task-sent events."""

    def __init__(self):
        self.taken = []

    def publish(self, kind, fields, *_, **__):
        self.taken.append(tuple(str(fields[name]) for name in ("queue", "exchange", "routing_key")))


@dataclass
class Place:
    """The destinations of messages, and the destinations reported by signals and events."""

    messages: list
    signals: list
    events: list


class Publisher:
    """An app, and the messages that it publishes."""

    def __init__(self, redis, url, transport, **conf):
        self.redis, self.signals = redis, []
        self.app = Celery("places", broker=url, backend="cache+memory://", set_as_current=False)
        self.app.conf.update(broker_transport=transport, task_send_sent_event=True, **conf)
        self.events = self.app.amqp._event_dispatcher = Events()
        self.is_ours = transport is not None

    def task(self, **options):
        def nothing(*args):
            pass

        return self.app.task(name="nothing", shared=False, **options)(nothing)

    @contextmanager
    def listening(self):
        def note(exchange, routing_key, **_):
            self.signals.append((getattr(exchange, "name", exchange), routing_key))

        before_task_publish.connect(note)
        after_task_publish.connect(note)
        try:
            yield
        finally:
            before_task_publish.disconnect(note)
            after_task_publish.disconnect(note)

    def messages(self):
        """Return (queue, message) of each waiting message."""
        if self.is_ours:
            for key in self.redis.scan_iter("*job:*"):
                message = loads(self.redis.get(key.replace(b"job:", b"message:")).decode())
                yield self.redis.hget(key, "type").decode(), message
        else:
            for key in self.redis.scan_iter(_type="list"):
                for each in self.redis.lrange(key, 0, -1):
                    yield key.decode().partition("\x06")[0], loads(each.decode())

    def place(self, publish, task):
        """Return the destinations of the last message of *publish*, called with *task*."""
        with self.listening():
            publish(self, task)
        places = [(queue, *map(message["properties"]["delivery_info"].get, ("exchange", "routing_key")))
                  for queue, message in self.messages()]  # fmt: skip
        found = Place(sorted(places), [*self.signals], [*self.events.taken])
        self.forget()
        return found

    def forget(self):
        self.signals.clear()
        self.events.taken.clear()
        for key in self.redis.scan_iter():
            if not key.startswith(b"_kombu.binding"):
                self.redis.delete(key)

    def first_message(self):
        """Return the first message, and delete all."""
        messages = sorted(self.messages(), key=lambda each: each[0])
        self.forget()
        return messages[0][1]

    def embedded(self, name):
        """Return the entry *name* of the message for its worker, as a signature."""
        message = self.first_message()
        body = message["body"]
        if message["properties"]["body_encoding"] == "base64":
            body = base64.b64decode(body)
        accept = [message["content-type"]]
        *_, embed = serialization.loads(body, message["content-type"], message["content-encoding"], accept)
        entry = embed[name]
        return self.app.signature(dict(entry[-1] if isinstance(entry, list) else entry))


def retry(**options):
    def retried(publisher, task):
        message = publisher.first_message()
        with running(task, message), pytest.raises(Retry):
            task.retry(countdown=0, **options)

    return retried


def then(*steps):
    def both(publisher, task):
        for step in steps:
            step(publisher, task)

    return both


def called(**options):
    return lambda _, task: task.apply_async(**options)


def follows(compose, name):
    """Publish like a worker that runs a message of *compose* and calls the entry *name* of it."""

    def publish(publisher, task):
        compose(publisher, task)
        callback = publisher.embedded(name)
        publisher.signals.clear()
        publisher.events.taken.clear()
        callback.apply_async()

    return publish


def by_beat(**options):
    def publish(publisher, task):
        entry = {"task": task.name, "schedule": 60, "options": options}
        publisher.app.conf.beat_schedule = {"entry": entry}
        scheduler = beat.Scheduler(app=publisher.app)
        scheduler.apply_async(scheduler.schedule["entry"], advance=False)

    return publish


def many(**options):
    return lambda publisher, task: (
        publish_many(task, [()], **options) if publisher.is_ours else task.apply_async(**options)
    )


OURS = "celery_affinity:Transport"

CONFS = {
    "no settings": {},
    "topics": {"task_queues": TOPIC},
    "a route": {"task_routes": {"nothing": {"queue": "x", "priority": 4}}},
    "a route to an exchange": {"task_routes": {"not*": {"exchange": "media", "routing_key": "audio.x"}}},
    "a default queue": {"task_default_queue": "all"},
    "undeclared": {"task_queues": TOPIC, "task_create_missing_queues": False},
    "pickle": {"task_serializer": "pickle", "accept_content": ["pickle", "json"]},
}
