"""Apps that publish without workers: tests read the messages."""

import gc
import importlib

import pytest
from celery import Celery
from kombu import pools

from celery_affinity.embedded import EmbeddedServer

from ..support.apps import STEPS, app_for, forget_connections
from ..support.destinations import Publisher
from ..support.misspellings import NOWHERE, OURS


@pytest.fixture
def app(valkey, redis_client):
    """An app that publishes to an empty server."""
    app = app_for(valkey.url, set_as_current=True, result_backend=valkey.url, task_ignore_result=True)
    app.redis = redis_client
    yield app
    app.close()
    pools.reset()  # the connections of producers, and the queues declared there


@pytest.fixture
def new_app():
    """Return a function that makes an app with this transport and no server.

    A call that passes the checks fails with a connection error instead.
    """
    made = []

    def make(*, transport=OURS, url=NOWHERE, **settings):
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(
            broker_transport=transport, task_publish_retry=False, broker_connection_timeout=0.1, task_ignore_result=True
        )
        app.conf.update(settings)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def publishers(redis_client, valkey):
    """Return a function that makes a `Publisher` with a transport (None: stock Celery's), on an empty server."""
    made = []

    def make(transport, **conf):
        pools.reset()  # forgets the queues declared for another publisher
        redis_client.flushall()
        made.append(Publisher(redis_client, valkey.url, transport, **conf))
        return made[-1]

    yield make
    for each in made:
        each.app.close()


@pytest.fixture
def producer(app):
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        yield producer


@pytest.fixture(scope="session")
def steps_url():
    """URL of a server for the app module that is imported once per process; it outlives single tests."""
    with EmbeddedServer() as server:
        # Only for the import: processes of other tests would inherit it.
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("BROKER_URL", server.url)
            module = importlib.import_module(STEPS)
        yield server.url
        gc.collect()  # deleted results unsubscribe, which must happen while the server still runs
        forget_connections(module.app)
