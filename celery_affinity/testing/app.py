"""The app under test: found, checked, and directed to a server of the test's own."""

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
#: Schemes of ``result_backend``, up to a "-" or "+", with which results go to a server like the broker's.
_REDIS = ("redis", "rediss", "sentinel", "valkey", "valkeys")


class TestingError(AffinityError, RuntimeError):
    """A fixture of `celery_affinity.testing` cannot do what the test asks for."""

    __test__ = False  # by its name pytest would take the class for tests


def load_app(app: Celery | str) -> Celery:
    """Return *app*, or the app that a text names as after ``celery -A``. Raises OptionError, TestingError."""
    if isinstance(app, Celery):
        found = app
    elif isinstance(app, str) and app:
        found = _find(app)
    else:
        raise refuse("affinity_app", "a Celery app, or what stands after `celery -A`", app)
    if not uses_affinity_transport(found.conf.broker_transport):
        raise TestingError(
            f"the app {found.main!r} must have broker_transport = 'celery_affinity:Transport', "
            f"got: {found.conf.broker_transport!r}"
        )
    return found


def _find(name: str) -> Celery:
    try:
        found = find_app(name)
    except (ImportError, AttributeError) as exc:
        raise TestingError(f"affinity_app must name an app as `celery -A` does, got: {name!r}: {exc}") from exc
    if not isinstance(found, Celery):
        raise TestingError(f"affinity_app must name a Celery app, got: {name!r}, which is {found!r}")
    return found


@contextmanager
def directed_app(app: Celery, url: str) -> Iterator[None]:
    """Have *app*, and each worker process started meanwhile, use the server at *url*, whatever the settings say.

    Celery prefers some variables of the environment to every setting, so the settings file of a worker process does not
    matter. Meanwhile *app* is the default app: a publisher in any thread finds it.
    """
    variables = [*_BROKER_VARIABLES]
    if str(app.conf.result_backend).partition(":")[0].partition("+")[0].partition("-")[0] in _REDIS:
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
    """Have *app* connect anew: the app keeps its connections, and kombu the list of queues declared on them."""
    pools.reset()
    app._pool = None
    app.amqp._producer_pool = None
    results = getattr(app._backend, "result_consumer", None)
    if results is not None:
        results.stop()
        results._pubsub = None  # else a result collected later would unsubscribe, at a server gone by then
    app._backend_cache = None
    vars(app._local).pop("backend", None)


def check_types(types: tuple[str, ...]) -> tuple[str, ...]:
    """Return *types*, the queues of a worker. Raises OptionError."""
    for each in types:
        if not isinstance(each, str) or not each or "," in each:
            raise refuse("types", "names of types, one an argument, such as 'pdf', 'excel'", each)
    return types


def check_concurrency(concurrency: int) -> int:
    """Return *concurrency*, the slots of a worker. Raises OptionError."""
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise refuse("concurrency", "a whole number above 0", concurrency)
    return concurrency


def import_path() -> str:
    """Return a PYTHONPATH with which a process can import what the tests can."""
    return os.pathsep.join(path for path in sys.path if path)
