"""Celery apps of the tests: each module builds one for the broker at ``$BROKER_URL``."""

import json
import os
from contextlib import contextmanager

from celery import Celery, _state
from kombu import pools

#: The app of most tests: typed tasks that record their runs in ``$LEDGER``.
APP = "tests.support.apps.typed"

#: The app of canvases: it records the mode of each step.
STEPS = "tests.support.apps.steps"


def new_app(name, **conf):
    """Return an app with this transport, for broker and results at ``$BROKER_URL``. *conf*: its settings.

    ``$TRANSPORT`` and ``$CONF`` (a JSON object of settings) override *conf*.
    """
    url = os.environ["BROKER_URL"]
    app = Celery(name, broker=url, backend=os.environ.get("RESULT_URL", url.partition(";")[0]))
    app.conf.update(broker_connection_retry_on_startup=True, **conf)
    app.conf.broker_transport = os.environ.get("TRANSPORT", "celery_affinity:Transport")
    app.conf.update(json.loads(os.environ.get("CONF", "{}")))
    return app


def app_for(url, *, set_as_current=False, **conf):
    """Return an app with this transport, for the broker at *url*. *conf*: its settings."""
    app = Celery(broker=url, set_as_current=set_as_current)
    app.conf.update({"broker_transport": "celery_affinity:Transport", **conf})
    return app


@contextmanager
def apps_stay_here():
    """Restore the global state that an app changes for later apps: shared tasks and the current app.

    A producer with a registered task publishes with the task's type, even if a test names another queue.
    """
    shared, current = set(_state._on_app_finalizers), _state._tls.current_app
    try:
        yield
    finally:
        _state._on_app_finalizers.intersection_update(shared)
        _state._set_current_app(current)


def forget_connections(app):
    """Close the connections of *app*: kombu remembers the queues declared there, and tests empty their servers."""
    if app._pool is not None:
        app._pool.force_close_all()  # each of several apps has a separate pool
    app._pool = None
    app.amqp._producer_pool = None
    pools.reset()
