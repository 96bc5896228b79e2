"""Replacements of Celery's remote control commands. Our own are in `own_commands`.

Celery's commands are replaced in workers of this transport only. The replaced `inspect` commands also list the jobs
that wait in Redis.
"""

from collections.abc import Callable
from typing import Any, Protocol

from celery import Celery
from celery.worker import control
from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError
from kombu.pidbox import Node
from redis.exceptions import RedisError

from ..log_limit import limited_logger
from ..publishing.message_body import raw_body
from ..reports import celery_inspect
from ..results.reporter import describe_error
from ..scheduler.reader import Reader
from ..schema.untrusted import as_whole_number, describe_shape, is_number
from ..schema.values import is_readable
from .own_commands import step_of

logger = limited_logger(__name__)
#: Maximum accepted value of a limit, in seconds or tasks.
_MAX_LIMIT = 1e9
#: Maximum number of processes or threads that one command adds or removes.
_MAX_PROCESSES = 10_000
#: Maximum body size for which a list of jobs contains decoded arguments, in bytes. For larger bodies, the list contains
#: the representations in the message headers.
_MAX_DECODED_BYTES = 100_000

Reply = dict[str, object]


class ControlState(Protocol):
    """The state that Celery passes to a remote control command."""

    app: Celery
    consumer: Consumer
    hostname: str


def keep_the_connection(app: Celery) -> None:
    """Let *app*'s workers survive a refused reply to remote control, even with a custom node class."""
    mailbox = app.control.mailbox
    base = mailbox.node_cls
    if not issubclass(base, ReplyingNode):
        mailbox.node_cls = type(base.__name__, (ReplyingNode, base), {"__module__": base.__module__})


class ReplyingNode(Node):
    """A remote control node that drops a reply if the server refuses it.

    Celery would instead recreate the broadcast consumer, which a full server refuses too. The worker would lose its
    connection, and receive no jobs until the server has memory again.
    """

    def reply(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().reply(*args, **kwargs)
        except (OperationalError, RedisError, OSError) as exc:
            logger.warning(
                "A reply to remote control is dropped, because the server rejects it: %s", describe_error(exc)
            )


def scheduled(state: ControlState, **kwargs: object) -> list[Reply]:
    """List of currently scheduled ETA/countdown tasks; one worker lists those that wait in Redis."""
    tasks: list[Reply] = control.scheduled(state, **kwargs)
    reader = _reader_if_responder(state)
    return (
        tasks
        if reader is None
        else [*tasks, *celery_inspect.scheduled_tasks(reader, _arguments(state), state.hostname)]
    )


def query_task(state: ControlState, ids: object, **kwargs: object) -> Reply:
    """Query for task information by id; one worker answers for those that wait in Redis."""
    tasks: Reply = control.query_task(state, ids, **kwargs)
    reader = _reader_if_responder(state)
    if reader is not None:
        task_ids = [id_ for id_ in control.maybe_list(ids) or () if isinstance(id_, str) and is_readable(id_)]
        missing = [task_id for task_id in task_ids if task_id not in tasks]
        tasks.update(celery_inspect.queried_tasks(reader, missing, _arguments(state), state.hostname))
    return tasks


def rate_limit(state: ControlState, task_name: str, rate_limit: object, **kwargs: object) -> Reply:
    if not isinstance(rate_limit, str):
        _check_numbers(rate_limit=rate_limit)
    return control.rate_limit(state, task_name, rate_limit, **kwargs)  # type: ignore[no-any-return]


def time_limit(state: ControlState, task_name: str | None = None, **kwargs: object) -> Reply:
    # The pool would receive the value with the next tasks, and the event loop's timers accept only numbers.
    _check_numbers(soft=kwargs.get("soft"), hard=kwargs.get("hard"))
    reply: Reply = control.time_limit(state, task_name=task_name, **kwargs)
    state.consumer.update_strategies()  # each strategy has a copy of its task's previous limits
    return reply


def pool_grow(state: ControlState, n: int = 1, **kwargs: object) -> Reply:
    _check_whole(n=n)
    reply: Reply = control.pool_grow(state, n, **kwargs)
    # The server already has the new slots; Celery on its own starts the processes 5 s later.
    state.consumer.pool.maintain_pool()
    return reply


def pool_shrink(state: ControlState, n: int = 1, **kwargs: object) -> Reply:
    _check_whole(n=n)
    return control.pool_shrink(state, n, **kwargs)  # type: ignore[no-any-return]


def autoscale(state: ControlState, max: int | None = None, min: int | None = None) -> Reply:
    _check_whole(max=max, min=min)
    reply: Reply = control.autoscale(state, max, min)
    state.consumer.pool.maintain_pool()
    return reply


def add_consumer(
    state: ControlState,
    queue: str,
    exchange: str | None = None,
    exchange_type: str | None = None,
    routing_key: str | None = None,
    **options: object,
) -> Reply:
    # Celery consumes later, in its loop, and at each reconnect, where an invalid queue would end the worker.
    _check_names(queue=queue, exchange=exchange, exchange_type=exchange_type, routing_key=routing_key)
    types = state.consumer.task_consumer.channel.exchange_types
    if exchange_type and exchange_type not in types:
        raise ValueError(f"exchange_type must be one of {', '.join(types)}, got: {exchange_type!r}")
    reply: Reply = control.add_consumer(state, queue, exchange, exchange_type, routing_key, **options)
    return reply


def cancel_consumer(state: ControlState, queue: str, **kwargs: object) -> Reply:
    _check_names(queue=queue)
    return control.cancel_consumer(state, queue, **kwargs)  # type: ignore[no-any-return]


def revoke(
    state: ControlState, task_id: object, terminate: bool = False, signal: object = None, **kwargs: object
) -> Reply:
    step = step_of(state)
    if terminate and step is not None:
        ids = [id_ for id_ in control.maybe_list(task_id) or () if isinstance(id_, str) and is_readable(id_)]
        step.end_merged_runs(ids, signal)
    return control.revoke(state, task_id, terminate, signal, **kwargs)  # type: ignore[no-any-return]


def terminate(state: ControlState, signal: object, task_id: object, **kwargs: object) -> Reply:
    return revoke(state, task_id, terminate=True, signal=signal, **kwargs)


#: Commands that replace Celery's commands of these names. `inspect` lists the jobs waiting in Redis; `control` takes
#: effect immediately.
REPLACEMENTS: tuple[Callable[..., object], ...] = (
    *(scheduled, query_task, rate_limit, time_limit, pool_grow, pool_shrink, autoscale),
    *(add_consumer, cancel_consumer, revoke, terminate),
)


def replace() -> None:
    """Replace Celery's commands in this process. Their arguments and descriptions stay Celery's."""
    control.Panel.data |= {command.__name__: command for command in REPLACEMENTS}
    control.Panel.data["dump_schedule"] = scheduled  # Celery's alias


def _check_names(queue: object, **others: object) -> None:
    """Raise ValueError, which is logged and sent as reply, unless each value is a name; *others* may be None."""
    names = {option: name for option, name in others.items() if name is not None}
    for option, name in {"queue": queue, **names}.items():
        if not (isinstance(name, str) and is_readable(name) and (name or option != "queue")):
            raise ValueError(f"{option} must be a name, got: {_shown(name)}")


def _check_numbers(**options: object) -> None:
    """Raise ValueError, which is logged and sent as reply, unless each value is None or valid seconds for a timer."""
    for option, number in options.items():
        if not (number is None or (is_number(number, _MAX_LIMIT) and number >= 0)):  # type: ignore[operator]
            raise ValueError(f"{option} must be a number from 0 to {_MAX_LIMIT:g}, got: {_shown(number)}")


def _check_whole(**options: object) -> None:
    """Raise ValueError, which is logged and sent as reply, unless each value is None or a number of processes."""
    for option, number in options.items():
        if not (number is None or as_whole_number(number, 0, _MAX_PROCESSES) is not None):
            raise ValueError(f"{option} must be a whole number from 0 to {_MAX_PROCESSES:,}, got: {_shown(number)}")


def _shown(value: object) -> str:
    return repr(value)[:100] if isinstance(value, str) or is_number(value) else describe_shape(value)


def _reader_if_responder(state: ControlState) -> Reader | None:
    step = step_of(state)
    if step is None:
        return None
    member = step.members.joined[0]
    reader = member.scheduler.reader
    return reader if celery_inspect.responder_id(reader) == member.id else None


def _arguments(state: ControlState) -> celery_inspect.Arguments:
    """Return a function that decodes a message's arguments, or returns their representations in the headers."""
    consumer = state.consumer.task_consumer

    def read(raw: dict[str, Any]) -> tuple[Any, Any]:
        try:
            raw_body(raw, _MAX_DECODED_BYTES)  # otherwise the reply would contain all bodies
            message = consumer.channel.message_to_python(raw)
            message.accept = consumer.accept
            args, kwargs, _ = message.payload
        except Exception:  # a sender's serializer may raise anything
            args, kwargs = (raw["headers"].get(name) for name in ("argsrepr", "kwargsrepr"))
        return args, kwargs

    return read
