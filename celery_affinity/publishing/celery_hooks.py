"""Celery's own methods that are wrapped where a call begins, since Celery has no hook there; importing wraps them.

`calls`: a task, its options, its signature, the router. `canvas`: chains, groups, chords, maps. `retries`: a retry that
cannot be published. `apps`: an app's connections, and the function with which it sends messages. `connections`: what
kombu repeats when a connection is lost.

The methods of Celery's apps that are wrapped: what each app makes to publish, a sender and its connections.

Celery has no hook that each app passes: an app may be made before this import or long after it, and publishes without
ever being finalized.

Methods of Celery's classes that are wrapped so that a type leads to its queue: one function for each.

Celery has no hook where a call enters. Classes are changed, not apps: an app may be made before this import. Priority
and ``on_demand`` pass through here untouched: `stamping` reads them.

A retry that could not be published, because the broker did not answer for longer than the retry policy lasts.

Celery then rejects the run without a requeue: the task is neither run again nor failed, and its caller waits for ever.
Here a late-acked task is given back, and runs again after a pause, which counts as a requeue. An early-acked task has
been acked, so it fails with the error of the publish, as it does if the retry was refused for another reason.

The method of kombu's connections that is wrapped: a publish outlasts as many lost connections as its policy says.

By itself, kombu gives up at the second one if a reconnect succeeded in between, whatever the policy, unless the
transport tells errors that another connection fixes from all others (`Transport.recoverable_connection_errors`). Ours
does: then kombu repeats all of them, without a pause, and with ``max_retries=None`` for ever.
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from celery import Celery, _state
from celery.app.amqp import AMQP
from celery.app.routes import Router
from celery.app.task import Task
from celery.canvas import Signature
from celery.exceptions import Reject
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from . import option_sources, routing
from .app_config import uses_affinity_transport

#: A function that sends a message: ``send_task_message`` of one app.
Sender = Callable[..., object]

#: The scheme of a cluster's URL.
_CLUSTER = re.compile(r"\b(redis|valkey)(s?)\+cluster://")


def on_send(wrap: Callable[[Celery, Sender], Sender]) -> None:
    """Replace each app's ``send_task_message``, now or when the app first publishes, by what *wrap* returns for it."""
    create: Callable[[AMQP], Sender] = AMQP._create_task_sender

    @wraps(create)
    def _create_task_sender(amqp: AMQP) -> Sender:
        return wrap(amqp.app, create(amqp))

    AMQP._create_task_sender = _create_task_sender
    for app in tuple(_state._get_active_apps()):
        amqp = vars(app).get("amqp")  # ``app.amqp`` would make one, and read the app's configuration
        if amqp is not None and "send_task_message" in vars(amqp):
            amqp.send_task_message = wrap(app, amqp.send_task_message)


def on_connection(mark: Callable[[Celery, Any], None]) -> None:
    """Have *mark* called with each app and each connection that the app makes from now on."""
    connect: Callable[..., Any] = Celery._connection

    @wraps(connect)
    def _connection(app: Celery, url: Any, *args: Any, **kwargs: Any) -> Any:
        if "+cluster://" in str(url) and uses_affinity_transport(kwargs.get("transport") or app.conf.broker_transport):
            url = _without_plus(url)
        connection = connect(app, url, *args, **kwargs)
        mark(app, connection)
        return connection

    Celery._connection = _connection


def _without_plus(url: Any) -> Any:
    """Return *url*, or a list of URLs, spelt so that kombu leaves it to our transport.

    Of ``redis+cluster://``, kombu would take ``redis`` for the transport, whatever transport the app names.
    """
    if isinstance(url, str):
        return _CLUSTER.sub(r"redis\2-cluster://", url)
    return [_without_plus(each) for each in url]


def _intercept(class_: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(class_, name)
    intercepted = wraps(method)(wrap(method))
    del intercepted.__wrapped__  # ``task_annotations`` would put the original in our place
    setattr(class_, name, intercepted)


def _options_of_task(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the options that a task has for all its calls: Celery merges them with a call's options, which count more.

    Celery caches these options on the task, so they are marked once for each task.
    """

    def _get_exec_options(task: Task) -> Any:
        options = method(task)
        if type(options) is not option_sources.TaskOptions:
            options = task._exec_options = option_sources.TaskOptions.marked(options)
        return options

    return _get_exec_options


def _signature_of_retry(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the place of a retry's first try, which Celery makes an option of the retry as if the caller had said so."""

    def signature_from_request(
        task: Task, request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **options: Any
    ) -> Any:
        signature = method(task, request, args, kwargs, queue, **options)
        if uses_affinity_transport(task.app.conf.broker_transport):
            option_sources.mark_first_attempt(signature.options, {"queue": queue, **options})
        return signature

    return signature_from_request


def _route(method: Callable[..., Any]) -> Callable[..., Any]:
    """Route a call to the queue of its type. Celery's router decides for everything that sees the call later."""

    def route(
        router: Router, options: Any, name: str, args: Any = (), kwargs: Any = None, task_type: Any = None
    ) -> Any:
        if router.app is None or not uses_affinity_transport(router.app.conf.broker_transport):
            return method(router, options, name, args, kwargs, task_type)
        return routing.route_call(method, router, options, name, args, kwargs, task_type, task=task_type)

    return route


def _set(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a later ``.set()`` count more than an earlier one.

    Celery merges by name: an earlier ``queue=`` would stay beside a later ``affinity=``.
    """

    def set_(signature: Signature, immutable: Any = None, **options: Any) -> Any:
        if option_sources.has_type_and_queue(options) and _is_for_us(signature):
            option_sources.check_place(options)
        if option_sources.mix_type_and_queue(signature.options, options) and _is_for_us(signature):
            counting = option_sources.without_overridden_route(signature.options, options)
            signature.options.clear()
            signature.options.update(counting)
        return method(signature, immutable, **options)

    return set_


def _merge(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have the options of ``apply_async`` count more than those of its signature, which Celery merges by name."""

    def merge(
        signature: Signature, args: Any = None, kwargs: Any = None, options: Any = None, force: Any = False
    ) -> Any:
        args, kwargs, merged = method(signature, args, kwargs, options, force)
        if options and option_sources.mix_type_and_queue(signature.options, options) and _is_for_us(signature):
            counting = option_sources.without_overridden_route(signature.options, options)
            merged = {**counting, **{name: merged[name] for name in options}}
        return args, kwargs, merged

    return merge


def _is_for_us(signature: Signature) -> bool:
    return uses_affinity_transport(signature.app.conf.broker_transport)


_intercept(Task, "_get_exec_options", _options_of_task)
_intercept(Task, "signature_from_request", _signature_of_retry)
Task.subtask_from_request = Task.signature_from_request  # Celery's other name of that method
_intercept(Router, "route", _route)
_intercept(Signature, "set", _set)
_intercept(Signature, "_merge", _merge)


def _is_of_no_answer(error: Exception) -> bool:
    """Return whether *error* is that of a broker that does not answer."""
    import redis  # not at the top: a process that has published nothing yet need not load it

    return isinstance(error, (OperationalError, redis.ConnectionError, redis.TimeoutError, OSError))


def _watch_retries() -> None:
    retry_task = Task.retry

    @wraps(retry_task)
    def retry(task: Any, *args: Any, **options: Any) -> Any:
        try:
            return retry_task(task, *args, **options)
        except Reject as exc:
            if (
                exc.requeue
                or not isinstance(exc.reason, Exception)
                or not uses_affinity_transport(task.app.conf.broker_transport)
            ):
                raise
            if task.acks_late and _is_of_no_answer(exc.reason):
                raise Reject(exc.reason, requeue=True) from exc.reason
            raise exc.reason from None

    Task.retry = retry


_watch_retries()


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
    if not uses_affinity_transport(connection.transport_cls):
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

    from ..broker.failover import SlotRedirectError

    lost = (errors.ConnectionError, errors.TimeoutError, errors.NoScriptError, OSError)
    stays = (errors.AuthenticationError, errors.AuthorizationError, SlotRedirectError)
    return isinstance(exc, lost) and not isinstance(exc, stays)


Connection.ensure = _ensure_with_pauses
