"""The classes of a worker's consumer and pool derive from custom classes, whose methods still run."""

import pytest
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool
from celery.worker.consumer import Consumer

from celery_affinity.worker import consumer
from celery_affinity.worker.pool import derive_pool

from ..support.apps import app_for
from ..support.fleet import POOLS_IN_TIME
from ..support.processes import ROOT, start_worker

pytestmark = pytest.mark.whole

APP = """
import os
from pathlib import Path
from celery import Celery
from celery.signals import worker_init
from celery.worker.consumer import Consumer

url, here = os.environ["BROKER_URL"], Path(os.environ["HERE"])
app = Celery("own", broker=url, backend=url)
app.conf.update(broker_transport="celery_affinity:Transport", worker_consumer="own:Own", affinity_queues=["pdf"])


def note(what):
    with (here / "notes").open("a") as file:
        file.write(what + "\\n")


class Own(Consumer):
    class Blueprint(Consumer.Blueprint):
        def start(self, parent):
            note("blueprint")
            super().start(parent)

    def __init__(self, on_task_request, **options):
        def starting(request):
            note(request.name)
            return on_task_request(request)

        super().__init__(starting, **options)

    def connection_for_read(self, **options):
        note("connection")
        return super().connection_for_read(**options)

    def update_strategies(self):
        note("strategies")
        super().update_strategies()


@worker_init.connect
def own_pool(sender, **_):
    from celery.concurrency import get_implementation

    base = get_implementation(sender.pool_cls)

    class OwnPool(base):
        def apply_async(self, *args, **options):
            note("pool")
            return super().apply_async(*args, **options)

    sender.pool_cls = OwnPool


@app.task(affinity="pdf", acks_late=True)
def parsed():
    return "parsed"
"""


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_custom_consumer_and_pool_work(valkey, redis_client, tmp_path, pool):
    (tmp_path / "own.py").write_text(APP)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HERE": str(tmp_path)}
    worker = start_worker("own", valkey.url, ["pdf"], pool=pool, name="own", env=env)
    worker.wait_ready(60)
    app = app_for(valkey.url, result_backend=valkey.url)
    try:
        assert app.send_task("own.parsed", queue="pdf").get(timeout=30) == "parsed"
        (shown,) = app.control.inspect(timeout=10).stats().values()
    finally:
        app.close()
    noted = dict.fromkeys((tmp_path / "notes").read_text().split())
    assert [*noted] == ["blueprint", "connection", "strategies", "own.parsed", "pool"]
    assert shown["affinity"]["slots"] == shown["pool"]["max-concurrency"]
    assert shown["pool"]["implementation"] == "own:OwnPool"


class Own(Consumer):
    pass


class OwnPool(TaskPool):
    class Pool(TaskPool.Pool):
        ResultHandler = type("OwnReader", (TaskPool.Pool.ResultHandler,), {})


class Inline(BasePool):
    pass


@pytest.mark.parametrize(
    ("derived", "own"),
    [
        (consumer.derive_consumer, Consumer),
        (consumer.derive_consumer, Own),
        (derive_pool, OwnPool),
        (derive_pool, Inline),
    ],
)
def test_derived_class_keeps_the_name_and_is_cached(derived, own):
    ours = derived(own)
    assert issubclass(ours, own)
    assert (ours.__name__, ours.__module__) == (own.__name__, own.__module__)
    assert derived(own) is ours, "by the next worker of the process"
    assert derived(ours) is ours
    if own is OwnPool:
        assert issubclass(ours.Pool, OwnPool.Pool)
        assert issubclass(ours.Pool.ResultHandler, OwnPool.Pool.ResultHandler)
