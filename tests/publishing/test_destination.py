"""Destinations of calls: like on stock Celery if the caller names one, otherwise the task's type."""

import pytest
from celery import chain, chord, group
from kombu import Exchange, Queue

from celery_affinity import Affinity
from celery_affinity.schema.keys import Keys

from ..support import since
from ..support.destinations import CONFS, OURS, by_beat, called, follows, many, retry, then

#: Queues that some calls declare.
DECLARED = [Queue(name, Exchange("media", "topic"), routing_key="audio.#") for name in ("loud", "louder")]

JOBS = Keys().key("job", "")


def sounds(exchange):
    return Queue(f"sounds-{exchange}", Exchange(f"sounds-{exchange}", exchange), routing_key="sound.loud")


#: Ways to name a call's destination with Celery's own options.
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

#: Ways to call that have another meaning for a task with its own queue.
NOTHING = ("nothing", "an empty name")


def places(publisher, ways, **options):
    """Return the destination or the error of each of *ways*, for a task with *options*."""
    task, found = publisher.task(**options), {}
    for name, way in ways.items():
        if name in ("exchange with no name", "an empty name") and "exchange" in str(publisher.app.conf.task_routes):
            continue  # queues without a name are not scheduled
        try:
            found[name] = publisher.place(way, task)
        except Exception as exc:
            publisher.forget()
            found[name] = repr(exc)
    return found


@pytest.mark.parametrize("conf", CONFS)
def test_named_destination_is_the_same_as_on_stock_celery(publishers, conf):
    expected, found = (places(publishers(each, **CONFS[conf]), {**SAYING, **NOT_SAYING}) for each in (None, OURS))
    assert found == expected


@pytest.mark.parametrize("conf", CONFS)
def test_named_destination_wins_over_the_tasks_type(publishers, conf):
    patterns = {"affinity_task_types": {"nothing": "video", "far": "video"}}
    saying = {name: way for name, way in SAYING.items() if since.MAPS_HAVE_OPTIONS or name != "map"}
    expected = places(publishers(None, **CONFS[conf]), saying)
    for own, more in ({"affinity": "video"}, {}), ({"affinity": Affinity("video", priority=5)}, {}), ({}, patterns):
        found = places(publishers(OURS, **CONFS[conf], **more), saying, **own)
        assert found == expected, (own, more)


@pytest.mark.filterwarnings("ignore:[\\s\\S]*task attribute is deprecated")
@pytest.mark.parametrize("conf", ["no settings", "a default queue", "topics", "undeclared"])
def test_type_is_shown_as_the_queue_of_its_name(publishers, conf):
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
