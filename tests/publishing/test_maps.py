"""A ``map``, ``starmap`` or ``chunks`` has the destination and the urgency of its task's calls."""

import pytest
from celery import Celery

from celery_affinity import Affinity
from celery_affinity.schema.keys import Keys

MADE = {
    "map": (lambda task: task.map([1, 2]).apply_async, 1),
    "starmap": (lambda task: task.starmap([(1,), (2,)]).apply_async, 1),
    "chunks": (lambda task: task.chunks([(1,), (2,), (3,)], 2).apply_async, 2),
}


def render(number):
    return number


def jobs(redis_client):
    fields = ("type", "lane", "rules")
    return [
        tuple((value or b"").decode() for value in redis_client.hmget(key, fields))
        for key in redis_client.keys(f"{Keys().key('job', '')}*")
    ]


@pytest.fixture
def app(valkey, redis_client):
    with Celery("maps", broker=valkey.url, set_as_current=False) as app:
        app.conf.broker_transport = "celery_affinity:Transport"
        yield app


@pytest.fixture
def task(app):
    affinity = Affinity("pdf", priority=4, on_demand=True, exclusive="{number}")
    return app.task(name="render", affinity=affinity, shared=False)(render)


@pytest.mark.parametrize("made", MADE)
def test_map_has_type_mode_and_priority_of_its_task(redis_client, task, made):
    call, number = MADE[made]
    call(task)()
    assert jobs(redis_client) == [("pdf", "demand.4", "")] * number


@pytest.mark.parametrize("made", ["map", "starmap"])  # for chunks Celery looks up only the routes of its own task
def test_options_of_the_call_or_a_route_win(app, redis_client, task, made):
    call, number = MADE[made]
    call(task)(queue="audio", on_demand=False)
    assert jobs(redis_client) == [("audio", "queued.4", "")] * number
    redis_client.flushall()
    app.conf.task_routes = {"render": {"affinity": "video"}}
    app.amqp.flush_routes()
    app.amqp.__dict__.pop("router", None)
    call(task)()
    assert {type_ for type_, _, _ in jobs(redis_client)} == {"video"}
