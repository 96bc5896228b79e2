"""Destinations of calls: as on stock Celery wherever the caller says one, and the task's type where nobody does."""

# Longer than 300 lines: some 60 ways to publish, compared with stock Celery.

import base64
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import redis
from celery import Celery, beat, chain, chord, group, shared_task
from celery.exceptions import QueueNotFound, Retry
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Queue, pools, serialization
from kombu.utils.json import loads

from celery_affinity import Affinity, OptionError, publish_many
from celery_affinity.rules.keys import Keys

from ..support import since
from ..support.messages import running

#: Queues of a topic exchange, beside others.
TOPIC = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("news", Exchange("media", "topic"), routing_key="news.all"),
    Queue("audio", Exchange("media", "topic"), routing_key="audio.#"),
    Queue("video"),
]

#: Queues that some calls declare.
DECLARED = [Queue(name, Exchange("media", "topic"), routing_key="audio.#") for name in ("loud", "louder")]

JOBS = Keys().key("job", "")


class Events:
    """A dispatcher that keeps the destinations in Celery's events of sent messages."""

    def __init__(self):
        self.taken = []

    def publish(self, kind, fields, *_, **__):
        self.taken.append(tuple(str(fields[name]) for name in ("queue", "exchange", "routing_key")))


@dataclass
class Place:
    """The places of messages, and the places that signals and events tell."""

    messages: list
    signals: list
    events: list


class Publisher:
    """An app, and the fate of the messages that the app publishes."""

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
        """Return the place of the last message of *publish*, called with *task*."""
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
        """Return a message, taken by a worker."""
        found = sorted(self.messages(), key=lambda each: each[0])
        self.forget()
        return found[0][1]

    def embedded(self, name):
        """Return the entry *name* of the message for its worker, as a signature."""
        message = self.first_message()
        body = message["body"]
        if message["properties"]["body_encoding"] == "base64":
            body = base64.b64decode(body)
        accept = [message["content-type"]]
        *_, embed = serialization.loads(body, message["content-type"], message["content-encoding"], accept)
        found = embed[name]
        return self.app.signature(dict(found[-1] if isinstance(found, list) else found))


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
    """Return the call that a worker makes for the entry *name* of a message that *compose* publishes."""

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


def sounds(exchange):
    return Queue(f"sounds-{exchange}", Exchange(f"sounds-{exchange}", exchange), routing_key="sound.loud")


#: Ways to say where a call goes, with no option of ours.
SAYING = {
    "apply_async": called(queue="audio"),
    "the default queue": called(queue="celery"),
    "Queue": called(queue=Queue("audio")),
    "Queue with a direct exchange": called(queue=sounds("direct")),
    "Queue with a topic exchange": called(queue=sounds("topic")),
    "queue, routing_key": called(queue="audio", routing_key="x"),
    "Queue, routing_key": called(queue=sounds("topic"), routing_key="sound.loud"),
    "routing_key": called(routing_key="audio"),
    "routing_key of a topic": called(exchange="media", routing_key="audio.x", declare=DECLARED),
    "exchange": called(exchange="media"),
    "exchange with no name": called(exchange="", routing_key="audio"),
    "Exchange": called(exchange=Exchange("media", "topic"), routing_key="audio.x", declare=DECLARED),
    "queue and exchange": called(queue="audio", exchange="media", routing_key="audio.x", declare=DECLARED),
    "with other options": called(queue="audio", priority=3, countdown=5, expires=60, headers={"queue": "x"}),
    "send_task": lambda publisher, task: publisher.app.send_task(task.name, queue="audio"),
    "send_task of a name": lambda publisher, _: publisher.app.send_task("far", queue="audio"),
    "send_task, routing_key": lambda publisher, task: publisher.app.send_task(task.name, routing_key="audio"),
    "publish_many": many(queue="audio"),
    ".set()": lambda _, task: task.s().set(queue="audio").delay(),
    ".set() of a Queue": lambda _, task: task.s().set(queue=Queue("audio")).delay(),
    "Signature.apply_async": lambda _, task: task.s().apply_async(queue="audio"),
    "Signature.apply_async after .set()": lambda _, task: task.s().set(queue="x").apply_async(queue="audio"),
    "signature with options": lambda _, task: task.signature(options={"queue": "audio"}).delay(),
    "clone": lambda _, task: task.s().clone(queue="audio").delay(),
    "signature by name": lambda publisher, task: publisher.app.signature(task.name).set(queue="audio").delay(),
    "chain": lambda _, task: chain(task.si().set(queue="audio"), task.si()).apply_async(),
    "chain.apply_async": lambda _, task: chain(task.si(), task.si()).apply_async(queue="audio"),
    "a chain's second step": follows(
        lambda _, task: chain(task.si(), task.si().set(queue="audio")).apply_async(), "chain"
    ),
    "group": lambda publisher, task: group([task.si().set(queue="audio"), task.si().set(queue="x")]).apply_async(),
    "group.apply_async": lambda publisher, task: group([task.si(), task.si()]).apply_async(queue="audio"),
    "group.apply_async after .set()": lambda _, task: group([task.si().set(queue="x")]).apply_async(queue="audio"),
    "a chord's header": lambda _, task: chord(
        [task.si().set(queue="audio")] * 2, task.si().set(queue="x")
    ).apply_async(),
    "a chord's body": follows(lambda _, task: task.apply_async(chord=task.si().set(queue="audio")), "chord"),
    "link": follows(lambda _, task: task.apply_async(link=task.si().set(queue="audio")), "callbacks"),
    "link_error": follows(lambda _, task: task.apply_async(link_error=task.si().set(queue="audio")), "errbacks"),
    "map": lambda _, task: task.map([(1,)]).set(queue="audio").apply_async(),
    "chunks": lambda _, task: task.chunks([(1,), (2,)], 1).apply_async(queue="audio"),
    "beat": by_beat(queue="audio"),
    "beat, exchange": by_beat(exchange="media", routing_key="audio.x"),
    "a retry keeps it": then(called(queue="audio"), retry()),
    "a retry keeps an exchange": then(called(queue=sounds("topic")), retry()),
    "a retry says it": then(called(), retry(queue="audio")),
    "a retry says another": then(called(queue="x"), retry(queue="audio")),
    "a retry says a Queue": then(called(), retry(queue=Queue("audio"))),
    "a retry says the default queue": then(called(queue="audio"), retry(queue="celery")),
    "a retry says a routing_key": then(called(queue="audio"), retry(routing_key="x")),
    "a retry says an exchange": then(called(queue="audio"), retry(exchange="media", routing_key="audio.x")),
    "a retry of a retry": then(called(queue="x"), retry(queue="audio"), retry()),
}

#: Ways to call that leave the destination open.
NOT_SAYING = {
    "plain delay": lambda _, task: task.delay(),
    "plain apply_async": called(priority=3, countdown=5),
    "nothing": called(queue=None, routing_key=None, exchange=None),
    "an empty name": called(queue="", routing_key=""),
    "plain send_task": lambda publisher, task: publisher.app.send_task(task.name),
    "plain publish_many": many(),
    "plain signature": lambda _, task: task.s().set(priority=2).delay(),
    "plain signature by name": lambda publisher, task: publisher.app.signature(task.name).delay(),
    "plain group": lambda _, task: group([task.si(), task.si()]).apply_async(),
    "plain a chain's second step": follows(lambda _, task: chain(task.si(), task.si()).apply_async(), "chain"),
    "plain link": follows(lambda _, task: task.apply_async(link=task.si()), "callbacks"),
    "plain beat": by_beat(),
    "plain retry": then(called(), retry()),
    "plain retry of a retry": then(called(), retry(), retry()),
}

#: Ways to call that mean something else for a task with a queue of its own.
NOTHING = ("nothing", "an empty name")

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


@pytest.fixture
def publishers(redis_client, valkey):
    made = []

    def make(transport, **conf):
        pools.reset()  # forgets the queues declared for another publisher
        redis_client.flushall()
        made.append(Publisher(redis_client, valkey.url, transport, **conf))
        return made[-1]

    yield make
    for each in made:
        each.app.close()


def places(publisher, ways, **options):
    """Return where each of *ways* goes, or the error that it raises, for a task with *options*."""
    task, found = publisher.task(**options), {}
    for name, way in ways.items():
        if name in ("exchange with no name", "an empty name") and "exchange" in str(publisher.app.conf.task_routes):
            continue  # a queue without a name is none of ours
        try:
            found[name] = publisher.place(way, task)
        except Exception as exc:
            publisher.forget()
            found[name] = repr(exc)
    return found


@pytest.mark.parametrize("conf", CONFS)
def test_what_the_caller_says_goes_where_stock_celery_takes_it(publishers, conf):
    expected, found = (places(publishers(each, **CONFS[conf]), {**SAYING, **NOT_SAYING}) for each in (None, OURS))
    assert found == expected


@pytest.mark.parametrize("conf", CONFS)
def test_and_so_it_does_whatever_the_task_needs(publishers, conf):
    patterns = {"affinity_task_types": {"nothing": "video", "far": "video"}}
    saying = {name: way for name, way in SAYING.items() if since.MAPS_HAVE_OPTIONS or name != "map"}
    expected = places(publishers(None, **CONFS[conf]), saying)
    for own, more in ({"affinity": "video"}, {}), ({"affinity": Affinity("video", priority=5)}, {}), ({}, patterns):
        found = places(publishers(OURS, **CONFS[conf], **more), saying, **own)
        assert found == expected, (own, more)


@pytest.mark.filterwarnings("ignore:[\\s\\S]*task attribute is deprecated")
@pytest.mark.parametrize("conf", ["no settings", "a default queue", "topics", "undeclared"])
def test_a_type_is_shown_as_the_queue_of_its_name(publishers, conf):
    left_out = {*NOTHING, *(() if since.SENT_AS_REGISTERED else ("plain send_task",))}
    ways = {name: way for name, way in NOT_SAYING.items() if name not in left_out}
    expected = places(publishers(None, **CONFS[conf]), ways, queue="video")
    for own, more in (
        ({"affinity": "video"}, {}),
        ({"affinity": "video", "queue": "x", "routing_key": "y", "exchange": "z"}, {}),
        ({}, {"affinity_task_types": {"noth*": "video"}}),
        ({}, {"task_routes": {"nothing": {"affinity": "video"}}}),
        ({"affinity": "x"}, {"task_routes": {"nothing": {"affinity": "video", "exchange": "media"}}}),
        ({"affinity": "video"}, {"task_routes": {"nothing": {"queue": "x", "exchange": "media", "routing_key": "y"}}}),
    ):
        if conf == "undeclared" and "x" in str((own, more)):
            continue
        found = places(publishers(OURS, **CONFS[conf], **more), ways, **own)
        assert found == expected, (own, more)


#: Place of the option, the strongest first -> the call, then weaker places: the task's options and the routes.
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
def test_the_order_in_which_places_count(publishers, name):
    way, own, routes = ORDER[name]
    ours = publishers(OURS, task_routes=routes)
    assert ours.place(way, ours.task(**own)).messages == [("video", "", "video")]


def test_a_handler_of_the_signal_has_the_last_word(publishers):
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
def test_a_call_that_names_two_places_is_refused_by_both_names(publishers, options, message):
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


def test_an_app_with_another_transport_may_say_what_it_likes(publishers):
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


def test_a_queue_that_is_not_declared_is_refused_however_it_is_named(publishers):
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


def test_shared_tasks_and_those_of_an_overridden_class_as_any_other(publishers):
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


def test_what_kombu_alone_publishes_goes_where_it_says_unless_that_is_the_default(publishers):
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


#: A program that imports nothing of ours: the first connection does, when the first call is under way.
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


def test_the_first_call_of_a_process_goes_where_the_second_does(valkey, redis_client):
    url = valkey.url.removesuffix("/0")
    subprocess.run([sys.executable, "-c", FIRST, url, *FIRST_CALLS], check=True, timeout=60)
    found = {}
    for number, call in enumerate(FIRST_CALLS):
        with redis.Redis.from_url(f"{url}/{number}") as client:
            found[call] = [client.hget(key, "type").decode() for key in client.scan_iter("*job:*")]
    assert found == {call: [queue] * 2 for call, queue in FIRST_CALLS.items()}
