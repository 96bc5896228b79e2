"""The method of kombu's connections that is wrapped: a publish outlasts as many lost connections as its policy says.

By itself, kombu gives up at the second one if a reconnect succeeded in between, whatever the policy, unless the
transport tells errors that another connection fixes from all others (`Transport.recoverable_connection_errors`). Ours
does: then kombu repeats all of them, without a pause, and with ``max_retries=None`` for ever.
"""

import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from ..of_app import is_ours

_ensure: Callable[..., Callable[..., Any]] = Connection.ensure


@wraps(_ensure)
def _ensure_with_pauses(
    connection: Connection,
    obj: Any,
    fun: Callable[..., Any],
    errback: Callable[..., Any] | None = None,
    max_retries: int | None = None,
    interval_start: float = 1,
    interval_step: float = 1,
    interval_max: float = 1,
    on_revive: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    policy = (errback, max_retries, interval_start, interval_step, interval_max, on_revive)
    if not is_ours(connection.transport_cls):
        return _ensure(connection, obj, fun, *policy, **options)

    def ensured(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as exc:
            first = exc
        pauses = fxrange(interval_start, interval_max + interval_start, interval_step, repeatlast=True)
        repeated = _repeated(fun, first, pauses, connection.recoverable_connection_errors)
        return _ensure(connection, obj, repeated, *policy, **options)(*args, **kwargs)

    return ensured


def _repeated(
    fun: Callable[..., Any], first: Exception, pauses: Iterator[float], recoverable: tuple[type[BaseException], ...]
) -> Callable[..., Any]:
    """Return *fun* for kombu, which repeats it on a new connection after each error that is *recoverable*.

    *first*: the error of the first try, which was made already. Of the errors that follow, a lost connection is
    repeated as often as kombu does, and all else is not. *pauses*: s, before the first repeat, the second, and so on.
    Like kombu's own, the first repeat has no pause.
    """
    tries = 0

    def repeated(*args: Any, **kwargs: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise first
        pause_s = next(pauses)
        if tries > 2:
            time.sleep(pause_s)
        try:
            return fun(*args, **kwargs)
        except recoverable as exc:
            if not _is_lost(exc):
                raise OperationalError(str(exc)) from exc  # which kombu does not repeat
            raise

    return repeated


def _is_lost(exc: BaseException) -> bool:
    """Return whether *exc* says that a connection is lost, or the server in a state that passes (`server.passing`).

    A refused login is a ConnectionError of redis-py, too. The next connection may have a newer login; if it has not, no
    further one will.
    """
    from redis import exceptions as errors  # not at the top: a process that only imports tasks needs no redis

    from ...server.passing import WrongNodeError

    lost = (errors.ConnectionError, errors.TimeoutError, errors.NoScriptError, OSError)
    stays = (errors.AuthenticationError, errors.AuthorizationError, WrongNodeError)
    return isinstance(exc, lost) and not isinstance(exc, stays)


Connection.ensure = _ensure_with_pauses
