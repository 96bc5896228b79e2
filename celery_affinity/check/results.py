"""Facts and findings about the result backend: whether Celery knows it, can create it, and gets an answer from it.

Without a result backend that answers, `get` fails, and workers cannot store results.
"""

import threading
from queue import Empty, Queue

from celery import Celery
from celery.app import backends
from celery.backends.redis import RedisBackend
from celery.utils.imports import load_extension_class_names

from ..options.did_you_mean import closest_names
from ..transport.app_api import PATIENCE_S
from ..transport.urls import mask_url
from .facts import Facts, ResultFacts
from .finding import Level, Problem, Problems, all_facts, finding, with_full_stop

#: Maximum time for a result backend to be created and to answer, in seconds. It can try more than once.
_TIMEOUT_S = 2 * PATIENCE_S

#: Values of `result_backend` without a backend.
_NO_BACKEND = (None, "", "disabled", "disabled://")


class BackendQuery:
    """Queries the result backend of *app* in a dedicated thread, because the backend is foreign code and can hang."""

    def __init__(self, app: Celery) -> None:
        self._url = app.conf.result_backend
        self._answers: Queue[ResultFacts] = Queue()
        if self._url not in _NO_BACKEND:
            threading.Thread(target=lambda: self._answers.put(_check_backend(app, self._url)), daemon=True).start()

    def answer(self) -> ResultFacts | None:
        """Return the facts of the result backend, or None if the app has no result backend."""
        if self._url in _NO_BACKEND:
            return None
        try:
            return self._answers.get(timeout=_TIMEOUT_S)
        except Empty:
            return ResultFacts(_masked(self._url), down=f"no end within {_TIMEOUT_S:g} s")


def _check_backend(app: Celery, url: object) -> ResultFacts:
    shown = _masked(url)
    names = {*backends.BACKEND_ALIASES, *app.loader.override_backends, *_extension_backends()}
    name = _backend_name(url)
    try:
        backends.by_url(url, app.loader)
    except Exception as exc:  # any: an unknown name is imported as a module
        if name is not None and name not in names and "." not in name and ":" not in name:
            return ResultFacts(shown, unknown=name, meant=closest_names(name, sorted(names)))
        return ResultFacts(shown, fails=_error_text(exc))
    try:
        backend = app.backend
    except Exception as exc:  # any: its package can be missing, or its options invalid
        return ResultFacts(shown, fails=_error_text(exc))
    if not isinstance(backend, RedisBackend):
        return ResultFacts(shown)
    try:
        _ping(backend)
    except Exception as exc:  # any: after any error of the client, results cannot be stored
        return ResultFacts(shown, down=_error_text(exc))
    return ResultFacts(shown)


def _ping(backend: RedisBackend) -> None:
    """Ping the server of *backend* once, on a separate connection. Raises the client's errors."""
    bounds = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), PATIENCE_S)
    given = backend.connparams
    client = backend._create_client(**{**given, **{name: bound for name, bound in bounds.items() if name in given}})
    try:
        client.ping()
    finally:
        client.connection_pool.disconnect()


def _backend_name(url: object) -> str | None:
    """Return the backend's name in *url*, which may lack ``://``, or None if *url* is not a string."""
    return url.partition("://")[0].partition("+")[0] if isinstance(url, str) else None


def _extension_backends() -> dict[str, str]:
    return dict(load_extension_class_names("celery.result_backends"))


def _masked(url: object) -> str:
    if not isinstance(url, str):
        return repr(url)
    try:
        return mask_url(url)
    except ValueError:  # the port is not a number: any part may be a password
        return f"{_backend_name(url)}://..."


def _error_text(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())


@finding("backend-unknown", Level.ERROR, lambda facts: facts.results)
def backend_unknown(results: ResultFacts) -> Problems:
    """`result_backend` does not name a result backend of Celery, such as `redsi://`. Workers do not start, and calls
    that want a result fail.
    """
    if results.unknown is not None:
        close = f"did you mean {results.meant}://? " if results.meant else ""
        yield Problem(
            f"result_backend is {results.url}, and Celery has no result backend {results.unknown!r}: {close}Workers do "
            "not start, and calls that want a result fail.",
            "Write redis://, rediss://, sentinel:// or another backend of Celery's, or the path of a class.",
        )


@finding("backend-fails", Level.ERROR, lambda facts: facts.results)
def backend_fails(results: ResultFacts) -> Problems:
    """The result backend cannot be made: its package is missing, or its URL is wrong."""
    if results.fails is not None:
        yield Problem(
            f"The result backend {results.url} cannot be made: {with_full_stop(results.fails)}",
            "Install the package that the backend needs, or correct its URL and options.",
        )


@finding("backend-down", Level.ERROR, all_facts)
def backend_down(facts: Facts) -> Problems:
    """The result backend is on Redis or Valkey, and its server refuses connections, does not answer within 5 s, or does
    not know the user. Workers cannot store results. Other kinds of backends are not asked.
    """
    results = facts.results
    if results is None or results.down is None or (facts.down and facts.app.results_on_broker):
        return  # a backend on the broker's server is down with it
    yield Problem(
        f"The result backend {results.url} does not answer: {with_full_stop(results.down)} "
        "Workers cannot store results, and get() raises, or waits.",
        "Check that its server runs, that this machine can reach it, and that user and password are right.",
    )
