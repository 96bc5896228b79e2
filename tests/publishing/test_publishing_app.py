"""Apps in one process: an app publishes by its own settings, whichever app is current."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery, chain, group, signature
from celery._state import _set_current_app
from celery.signals import after_task_publish, before_task_publish
from kombu import Connection, pools

from celery_affinity import Affinity, publish_many
from celery_affinity.publishing.publish_call import app_of_connection
from celery_affinity.schema.keys import Keys

#: App -> settings, options of its task "render", and the place where a call without options must wait.
APPS = {
    "by name": ({"affinity_task_types": {"render": "pdf"}}, {}, "lane:pdf:queued.0"),
    "by task": ({}, {"affinity": Affinity("excel", priority=4)}, "lane:excel:queued.4"),
    "turned": ({"affinity_priority_order": "lower-first"}, {}, "lane:celery:queued.10"),
    "elsewhere": ({"affinity_queues": ["pdf"], "task_default_queue": "lists"}, {}, "lists"),
}
NAMES = list(APPS)


def make(name, url):
    conf, options, _ = APPS[name]
    app = Celery(name, broker=url, set_as_current=False)
    app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True, **conf)

    @app.task(name="render", shared=False, **options)
    def render(number=0):
        return number

    return app


@pytest.fixture
def made(valkey, redis_client):
    pools.reset()
    apps = {name: make(name, valkey.url) for name in NAMES}
    yield apps
    for app in apps.values():
        app.close()
    pools.reset()


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=["by name", "turned", None], ids=lambda current: f"current {current}")
def app(request, made, name):
    """An app; the current app is the same app, another app, or none."""
    _set_current_app(made.get(request.param))
    yield made[name]
    _set_current_app(None)


@pytest.fixture
def waits(redis_client):
    """Return a function that maps places (lanes or lists) to their numbers of waiting jobs."""

    def found():
        lanes = {Keys().key("lane", *lane.split(":")[1:]): lane for _, _, lane in APPS.values() if lane != "lists"}
        counts = {lane: redis_client.zcard(key) for key, lane in lanes.items()}
        counts["lists"] = redis_client.llen("lists")
        total = len(list(redis_client.scan_iter("*job:*"))) + counts["lists"]
        assert sum(counts.values()) == total, "a job waits at another place"
        redis_client.flushall()
        return {lane: count for lane, count in counts.items() if count}

    return found


def place(name):
    return APPS[name][2]


def hand_made(producer, queue):
    headers = {"task": "render", "id": "an-id"}
    producer.publish([[1], {}, {}], headers=headers, serializer="json", routing_key=queue, exchange="")


WAYS = {
    "delay": lambda app: app.tasks["render"].delay(1),
    "send_task": lambda app: app.send_task("render", (1,)),
    "signature": lambda app: app.signature("render", (1,)).delay(),
    "signature of no app": lambda app: signature("render", (1,), app=app).apply_async(),
    "group": lambda app: group(app.tasks["render"].s(1), app=app).apply_async(),
    "chain": lambda app: chain(app.tasks["render"].s(1), app=app).apply_async(),
    "publish_many": lambda app: publish_many(app.tasks["render"], [(1,)]),
}


def test_app_publishes_by_its_own_settings(app, name, waits):
    for way, publish in WAYS.items():
        publish(app)
        assert waits() == {place(name): 1}, way


def test_app_publishes_by_its_settings_in_any_thread(app, name, waits):
    with ThreadPoolExecutor(1) as threads:
        threads.submit(app.tasks["render"].delay, 1).result()
        threads.submit(publish_many, app.tasks["render"], [(1,), (2,)]).result()
    assert waits() == {place(name): 3}


def test_app_publishes_by_its_settings_through_amqp(app, name, waits):
    message = app.amqp.create_task_message("an-id", "render", (1,), {})
    with app.producer_pool.acquire(block=True) as producer:
        app.amqp.send_task_message(producer, "render", message)
    assert waits() == {place(name): 1}


def test_app_publishes_by_its_settings_with_any_producer(app, name, made, waits):
    for owner in made.values():
        with owner.producer_or_acquire() as producer:
            app.tasks["render"].apply_async((1,), producer=producer)
            publish_many(app.tasks["render"], [(1,), (2,)], producer=producer)
        with owner.connection_for_write() as connection:
            app.tasks["render"].apply_async((1,), connection=connection)
        assert waits() == {place(name): 4}


def test_kombu_publishes_by_the_settings_of_the_connections_app(app, name, waits):
    queue = app.conf.task_default_queue
    ways = [app.connection, app.connection_for_write, app.connection_or_acquire, lambda: app.pool.acquire(block=True)]
    for way in ways:
        with way() as connection:
            hand_made(connection.Producer(), queue)
        assert waits() == {place(name): 1}
    with app.producer_pool.acquire(block=True) as producer:
        hand_made(producer, queue)
    assert waits() == {place(name): 1}


def test_clone_of_a_connection_belongs_to_the_same_app(app):
    with app.connection() as connection, connection.clone() as clone:
        assert app_of_connection(clone) is app


def test_later_app_publishes_by_its_own_settings(made, waits, valkey):
    made["by name"].send_task("render")
    later = make("turned", valkey.url)
    later.send_task("render")
    made["by name"].send_task("render")
    assert waits() == {place("by name"): 2, place("turned"): 1}


def test_apps_come_and_go_and_leave_no_pools_behind(valkey, redis_client):
    pools.reset()
    gc.collect()
    for _ in range(5):
        app = make("by name", valkey.url)
        app.send_task("render")
        app.close()
        del app
        gc.collect()
    assert len(pools.connections) == 1
    pools.reset()


def test_handler_publishes_for_another_app_by_its_settings(made, waits):
    """The handler publishes before and after the call, with an app's function and with kombu alone."""

    def publish(sender, **_):
        if sender == "render" and not busy:
            busy.append(sender)
            made["turned"].send_task("render")
            with made["by task"].connection() as connection:
                hand_made(connection.Producer(), "celery")

    for sent in (before_task_publish, after_task_publish):
        busy = []
        sent.connect(publish)
        try:
            made["by name"].send_task("render")
        finally:
            sent.disconnect(publish)
        assert waits() == {place("by name"): 1, place("turned"): 1, place("by task"): 1}


def test_app_publishes_before_it_is_finalized(valkey, redis_client):
    app = Celery("open", broker=valkey.url, autofinalize=False, set_as_current=False)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_task_types={"far": "pdf"})
    app.send_task("far", ignore_result=True)
    assert redis_client.zcard(Keys().key("lane", "pdf", "queued.0")) == 1
    assert not app.finalized
    app.close()


def test_app_with_another_transport_is_not_changed(made, valkey, redis_client):
    stock = Celery("stock", broker=valkey.url, set_as_current=False)
    stock.send_task("render", queue="plain", ignore_result=True)
    (message,) = redis_client.lrange("plain", 0, -1)
    assert b"celery_affinity" not in message
    stock.close()


def test_unserved_type_is_warned_of_per_server_and_namespace(made, valkey, caplog):
    for name, namespace in [("by name", "north"), ("turned", "south")]:
        made[name].conf.broker_transport_options = {"namespace": namespace}
        for _ in range(2):
            made[name].send_task("render", affinity="nobody serves it")
    assert caplog.text.count("No live worker serves type 'nobody serves it'") == 2


#: The first connection of a process imports this transport while it is being created.
FIRST = """
import sys
from celery import Celery
from kombu.transport.redis import Transport as _  # stock's alone
apps = []
for conf in ({"affinity_task_types": {"render": "pdf"}}, {"affinity_task_types": {"render": "excel"}}):
    app = Celery(broker=sys.argv[1])
    app.conf.update(broker_transport="celery_affinity:Transport", **conf)
    apps.append(app)
assert "celery_affinity" not in sys.modules
order = [int(each) for each in sys.argv[2]]
for number in order:
    with apps[number].connection() as connection:
        connection.Producer().publish([], headers={"task": "render"}, serializer="json", routing_key="celery")
"""


@pytest.mark.parametrize("order", ["01", "10"])
def test_first_connection_of_a_process_belongs_to_its_app(valkey, redis_client, order):
    subprocess.run([sys.executable, "-c", FIRST, valkey.url, order], check=True, timeout=60)
    for type_ in ("pdf", "excel"):
        assert redis_client.zcard(Keys().key("lane", type_, "queued.0")) == 1


def test_connection_without_an_app_publishes(valkey, redis_client):
    with Connection(valkey.url, transport="celery_affinity:Transport") as connection:
        hand_made(connection.Producer(), "celery")
    assert len(list(redis_client.scan_iter("*job:*"))) == 1


def test_thread_without_a_current_app_publishes(valkey, redis_client):
    code = (
        "import threading, tests.support.apps.typed as app; "
        "thread = threading.Thread(target=app.excel.delay, args='1'); thread.start(); thread.join()"
    )
    env = {**os.environ, "BROKER_URL": valkey.url}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=30)
    (job,) = redis_client.scan_iter("*job:*")
    assert redis_client.hmget(job, "type", "lane") == [b"excel", b"queued.5"]
