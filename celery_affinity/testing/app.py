"""Load and check the app under test, and point it at the test's server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery, _state
from celery.app.utils import find_app
from kombu import pools

from ..errors import AffinityError, refuse
from ..publishing.app_config import uses_affinity_transport

_BROKER_VARIABLES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
_RESULT_VARIABLE = "CELERY_RESULT_BACKEND"
#: Schemes of ``result_backend``, up to a "-" or "+", for results on a Redis or Valkey server.
_REDIS_SCHEMES = ("redis", "rediss", "sentinel", "valkey", "valkeys")


class TestingError(AffinityError, RuntimeError):
    """A fixture of `celery_affinity.testing` cannot do what the test requests."""

    __test__ = False  # otherwise pytest would collect the class because of its name


def load_app(app: Celery | str) -> Celery:
    """Return *app*, or the app with the name *app*, as in ``celery -A``. Raises OptionError, TestingError."""
    if isinstance(app, Celery):
        celery_app = app
    elif isinstance(app, str) and app:
        celery_app = _find(app)
    else:
        raise refuse("affinity_app", "a Celery app, or what stands after `celery -A`", app)
    if not uses_affinity_transport(celery_app.conf.broker_transport):
        raise TestingError(
            f"the app {celery_app.main!r} must have broker_transport = 'celery_affinity:Transport', "
            f"got: {celery_app.conf.broker_transport!r}"
        )
    return celery_app


def _find(name: str) -> Celery:
    try:
        app = find_app(name)
    except (ImportError, AttributeError) as exc:
        raise TestingError(f"affinity_app must name an app as `celery -A` does, got: {name!r}: {exc}") from exc
    if not isinstance(app, Celery):
        raise TestingError(f"affinity_app must name a Celery app, got: {name!r}, which is {app!r}")
    return app


@contextmanager
def directed(app: Celery, url: str) -> Iterator[None]:
    """Make *app*, and worker processes started in this context, use the server at *url* regardless of the settings.

    Celery prefers some environment variables to all settings, so the settings file of a worker process does not matter.
    In this context, *app* is the default app, so publishers in any thread use it.
    """
    variables = [*_BROKER_VARIABLES]
    if str(app.conf.result_backend).partition(":")[0].partition("+")[0].partition("-")[0] in _REDIS_SCHEMES:
        variables.append(_RESULT_VARIABLE)
    with pytest.MonkeyPatch.context() as patch:
        for name in variables:
            patch.setenv(name, url)
        patch.setattr(_state, "default_app", app)
        forget_connections(app)
        try:
            yield
        finally:
            forget_connections(app)


def forget_connections(app: Celery) -> None:
    """Make *app* reconnect: the app keeps its connections, and kombu keeps the list of queues declared on them."""
    pools.reset()
    app._pool = None
    app.amqp._producer_pool = None
    results = getattr(app._backend, "result_consumer", None)
    if results is not None:
        results.stop()
        results._pubsub = None  # otherwise a result collected later would unsubscribe at the deleted server
    app._backend_cache = None
    vars(app._local).pop("backend", None)


def check_types(types: tuple[str, ...]) -> tuple[str, ...]:
    """Return *types*, the queues of a worker. Raises OptionError."""
    for type_ in types:
        if not isinstance(type_, str) or not type_ or "," in type_:
            raise refuse("types", "names of types, one an argument, such as 'pdf', 'excel'", type_)
    return types


def check_concurrency(concurrency: int) -> int:
    """Return *concurrency*, the slots of a worker. Raises OptionError."""
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise refuse("concurrency", "a whole number above 0", concurrency)
    return concurrency


def import_path() -> str:
    """Return a PYTHONPATH for a process that must import the same modules as the tests."""
    return os.pathsep.join(path for path in sys.path if path)
