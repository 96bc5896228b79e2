"""Wrappers of Celery and kombu methods where a call begins, because Celery has no hook there. Importing installs them.

Classes are changed, not apps: an app can be created before or long after this import, and can publish without ever
being finalized. ``priority`` and ``on_demand`` pass through unchanged; `publish_call` reads them.

Retries: if a retry cannot be published within the retry policy, Celery rejects the run without requeueing it. The task
neither runs again nor fails, and its caller waits forever. Here, a late-acked task is requeued and runs again after a
delay, which counts as a requeue. An early-acked task fails with the publish error, as it does if the retry was refused
for another reason.

Connections: a publish survives as many lost connections as its policy allows. Without this, kombu gives up at the
second one if a reconnect succeeded in between, unless the transport names errors that a new connection fixes
(`Transport.recoverable_connection_errors`). This transport names some, and kombu would then repeat all of them
without a delay, and with ``max_retries=None`` forever; `_ensure_with_delays` adds the delays.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from celery.app.routes import Router
from celery.app.task import Task
from celery.canvas import Signature
from celery.exceptions import Reject
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from . import option_sources, routing
from .app_config import replaces, uses_affinity_transport


@replaces(Task, "_get_exec_options")
def _options_of_task(original: Any, /, task: Task) -> Any:
    """Mark the options that a task has for all calls. Celery merges them with a call's options, which take precedence.

    Celery caches these options on the task, so they are marked once per task.
    """
    options = original(task)
    if type(options) is not option_sources.TaskOptions:
        options = task._exec_options = option_sources.TaskOptions.marked(options)
    return options


@replaces(Task, "signature_from_request")
def _signature_of_retry(
    original: Any,
    /,
    task: Task,
    request: Any = None,
    args: Any = None,
    kwargs: Any = None,
    queue: Any = None,
    **options: Any,
) -> Any:
    """Mark the destination of a retry's first attempt, which Celery adds to the retry as if the caller had set it."""
    signature = original(task, request, args, kwargs, queue, **options)
    if uses_affinity_transport(task.app.conf.broker_transport):
        option_sources.mark_first_attempt(signature.options, {"queue": queue, **options})
    return signature


@replaces(Router, "route")
def _route(
    original: Any, /, router: Router, options: Any, name: str, args: Any = (), kwargs: Any = None, task_type: Any = None
) -> Any:
    """Route a call to the queue of its type, so that everything after the router sees that queue."""
    if router.app is None or not uses_affinity_transport(router.app.conf.broker_transport):
        return original(router, options, name, args, kwargs, task_type)
    return routing.route_call(original, router, options, name, args, kwargs, task_type, task=task_type)


@replaces(Signature, "set")
def _set(original: Any, /, signature: Signature, immutable: Any = None, **options: Any) -> Any:
    """Let a later ``.set()`` override an earlier one.

    Celery merges by name: an earlier ``queue=`` would remain in addition to a later ``affinity=``.
    """
    if option_sources.has_type_and_queue(options) and _uses_affinity(signature):
        option_sources.check_place(options)
    if option_sources.mix_type_and_queue(signature.options, options) and _uses_affinity(signature):
        remaining = option_sources.without_overridden_route(signature.options, options)
        signature.options.clear()
        signature.options.update(remaining)
    return original(signature, immutable, **options)


@replaces(Signature, "_merge")
def _merge(
    original: Any,
    /,
    signature: Signature,
    args: Any = None,
    kwargs: Any = None,
    options: Any = None,
    force: Any = False,
) -> Any:
    """Let the options of ``apply_async`` override the signature's options, which Celery merges by name."""
    args, kwargs, merged = original(signature, args, kwargs, options, force)
    if options and option_sources.mix_type_and_queue(signature.options, options) and _uses_affinity(signature):
        remaining = option_sources.without_overridden_route(signature.options, options)
        merged = {**remaining, **{name: merged[name] for name in options}}
    return args, kwargs, merged


def _uses_affinity(signature: Signature) -> bool:
    return uses_affinity_transport(signature.app.conf.broker_transport)


Task.subtask_from_request = Task.signature_from_request  # Celery's alias of that method


def _is_unavailable(error: Exception) -> bool:
    """Return True if *error* means that the broker is unavailable."""
    import redis  # imported here: a process that has not published yet does not need it

    return isinstance(error, (OperationalError, redis.ConnectionError, redis.TimeoutError, OSError))


@replaces(Task, "retry")
def _retry(original: Callable[..., Any], /, task: Any, *args: Any, **options: Any) -> Any:
    try:
        return original(task, *args, **options)
    except Reject as exc:
        if (
            exc.requeue
            or not isinstance(exc.reason, Exception)
            or not uses_affinity_transport(task.app.conf.broker_transport)
        ):
            raise
        if task.acks_late and _is_unavailable(exc.reason):
            raise Reject(exc.reason, requeue=True) from exc.reason
        raise exc.reason from None


@replaces(Connection, "ensure")
def _ensure(
    original: Callable[..., Any],
    /,
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
    if not uses_affinity_transport(connection.transport_cls):
        unchanged: Callable[..., Any] = original(connection, obj, fun, *policy, **options)
        return unchanged

    def ensured(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as exc:
            first = exc
        delays = fxrange(interval_start, interval_max + interval_start, interval_step, repeatlast=True)
        repeated = _repeated(fun, first, delays, connection.recoverable_connection_errors)
        return original(connection, obj, repeated, *policy, **options)(*args, **kwargs)

    return ensured


def _repeated(
    fun: Callable[..., Any], first: Exception, delays: Iterator[float], recoverable: tuple[type[BaseException], ...]
) -> Callable[..., Any]:
    """Return *fun* for kombu, which repeats it on a new connection after each *recoverable* error.

    Among later errors, only lost connections are repeated, as often as kombu does. Like in kombu, the first repetition
    has no delay.

    Args:
        fun: the function to repeat.
        first: the error of the first attempt, which was already made.
        delays: seconds to wait before each repetition.
        recoverable: errors after which kombu makes a new connection.
    """
    attempts = 0

    def repeated(*args: Any, **kwargs: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise first
        delay_s = next(delays)
        if attempts > 2:
            time.sleep(delay_s)
        try:
            return fun(*args, **kwargs)
        except recoverable as exc:
            if not _is_lost(exc):
                raise OperationalError(str(exc)) from exc  # kombu does not repeat this error
            raise

    return repeated


def _is_lost(exc: BaseException) -> bool:
    """Return True if *exc* means a lost connection or a transient server state (`broker.failover`).

    A rejected login is also a ConnectionError of redis-py. The next connection can have a newer login. If it does not,
    no further connection will.
    """
    from redis import exceptions as errors  # imported here: a process that only imports tasks does not need redis

    from ..broker.failover import SlotRedirectError

    lost = (errors.ConnectionError, errors.TimeoutError, errors.NoScriptError, OSError)
    stays = (errors.AuthenticationError, errors.AuthorizationError, SlotRedirectError)
    return isinstance(exc, lost) and not isinstance(exc, stays)
