"""Gather the facts of the result backend: whether Celery knows its name, can create it, and gets an answer.

Rules about the result backend: without one that answers, `get` fails, and workers cannot store results.
"""

import threading
from collections.abc import Iterator
from queue import Empty, Queue

from celery import Celery
from celery.app import backends
from celery.backends.redis import RedisBackend
from celery.utils.imports import load_extension_class_names

from ..options.did_you_mean import closest_names
from ..transport.app_api import PATIENCE_S
from ..transport.urls import mask_url
from .facts import Facts, ResultFacts
from .finding import Finding, with_full_stop

#: Longest wait, s, for a result backend to be made and to answer: it may try more than once.
_MOST_S = 2 * PATIENCE_S

#: Backends that mean none.
_NONE = (None, "", "disabled", "disabled://")


class BackendQuery:
    """A question to the result backend of *app*, in a thread of its own: the backend is others' code, and may hang."""

    def __init__(self, app: Celery) -> None:
        self._url = app.conf.result_backend
        self._found: Queue[ResultFacts] = Queue()
        if self._url not in _NONE:
            threading.Thread(target=self._ask, args=(app,), daemon=True).start()

    def answer(self) -> ResultFacts | None:
        """Return what is wrong with the result backend; None if there is none."""
        if self._url in _NONE:
            return None
        try:
            return self._found.get(timeout=_MOST_S)
        except Empty:
            return ResultFacts(_shown(self._url), down=f"no end within {_MOST_S:g} s")

    def _ask(self, app: Celery) -> None:
        self._found.put(_results(app, self._url))


def _results(app: Celery, url: object) -> ResultFacts:
    shown = _shown(url)
    known = {*backends.BACKEND_ALIASES, *app.loader.override_backends, *_of_extensions()}
    name = _scheme(url)
    try:
        backends.by_url(url, app.loader)
    except Exception as exc:  # any: a name that is none is taken for a module, and imported
        if name is not None and name not in known and "." not in name and ":" not in name:
            return ResultFacts(shown, unknown=name, meant=closest_names(name, sorted(known)))
        return ResultFacts(shown, fails=_said(exc))
    try:
        backend = app.backend
    except Exception as exc:  # any: its package may be missing, or its options wrong
        return ResultFacts(shown, fails=_said(exc))
    if not isinstance(backend, RedisBackend):
        return ResultFacts(shown)
    try:
        _ping(backend)
    except Exception as exc:  # any: whatever a client raises, the results cannot be stored
        return ResultFacts(shown, down=_said(exc))
    return ResultFacts(shown)


def _ping(backend: RedisBackend) -> None:
    """Ask the server of *backend* once, by a connection of its own. Raises whatever the client does."""
    bounds = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), PATIENCE_S)
    given = backend.connparams
    client = backend._create_client(**{**given, **{name: each for name, each in bounds.items() if name in given}})
    try:
        client.ping()
    finally:
        client.connection_pool.disconnect()


def _scheme(url: object) -> str | None:
    """Return the name of the backend in *url*, or in a name without ``://``; None for anything but a text."""
    return url.partition("://")[0].partition("+")[0] if isinstance(url, str) else None


def _of_extensions() -> dict[str, str]:
    return dict(load_extension_class_names("celery.result_backends"))


def _shown(url: object) -> str:
    if not isinstance(url, str):
        return repr(url)
    try:
        return mask_url(url)
    except ValueError:  # a port that is no number: nothing of it can be told from a password
        return f"{_scheme(url)}://..."


def _said(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())


def backend_unknown(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is not None and results.unknown is not None:
        close = f"did you mean {results.meant}://? " if results.meant else ""
        yield Finding(
            "backend-unknown",
            f"result_backend is {results.url}, and Celery has no result backend {results.unknown!r}: {close}Workers do "
            "not start, and calls that want a result fail.",
            "Write redis://, rediss://, sentinel:// or another backend of Celery's, or the path of a class.",
        )


def backend_fails(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is not None and results.fails is not None:
        yield Finding(
            "backend-fails",
            f"The result backend {results.url} cannot be made: {with_full_stop(results.fails)}",
            "Install the package that the backend needs, or correct its URL and options.",
        )


def backend_down(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is None or results.down is None or (facts.down and facts.app.backend):
        return  # a backend on the broker's server is down with it
    yield Finding(
        "backend-down",
        f"The result backend {results.url} does not answer: {with_full_stop(results.down)} Workers cannot store results, and "
        "get() raises, or waits.",
        "Check that its server runs, that this machine can reach it, and that user and password are right.",
    )


RULES = (backend_unknown, backend_fails, backend_down)
