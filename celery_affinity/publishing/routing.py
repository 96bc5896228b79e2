"""The destination of a call's message: Celery's router gets the queue of the call's type.

Everything after the router therefore sees the queue as if the call had set ``queue=``: signals, headers, events, the
declaration, the worker's ``delivery_info``, and a retry, which goes to the queue of its first attempt.

The table of options (`call_options`) defines which source of a type takes precedence. Its order is applied in two
steps, because Celery merges the call's options with a route: before that, `route_call` resolves everything except the
route; afterwards, a route's ``affinity`` overrides the types of the task and of name patterns. A ``queue=``,
``routing_key=`` or ``exchange=`` of the call takes precedence like its ``affinity=``. Without a type, Celery chooses
the queue.

`option_sources` distinguishes the caller's options from the options that Celery added.

For each message Celery makes kombu declare the queue. kombu first binds a copy of queue and exchange to the channel,
only to notice that the connection has already declared that name: a sixth of Celery's own work per publish. `bind_once`
binds queues once per channel instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.routes import Router
from celery.app.task import Task
from kombu import Queue

from ..errors import OptionError
from ..options.affinity import as_affinity
from ..options.call_options import KEYS, Sources, resolve
from ..options.due_times import DEADLINE
from . import option_sources
from .app_config import settings_of, tasks_of, type_by_name
from .message import PROPERTY
from .option_checks import wrong_place_of_deadline
from .option_sources import (
    ROUTING,
    FromFirstAttempt,
    FromTask,
    Options,
    check_that_they_agree,
    explicit_places,
    mark_place,
    place_name,
    without_place,
)

#: The options of `ROUTING`, and an option that belongs to an exchange.
_DESTINATION = (*ROUTING, "exchange_type")

#: Celery's tasks that run another task for each of several arguments, and are routed by that task's name.
MAPS = ("celery.map", "celery.starmap", "celery.chunks")


class Routed:
    """Value of option `PROPERTY` after this module has routed the call. *former* is the previous value."""

    def __init__(self, former: object = None) -> None:
        self.former = former


_ROUTED = Routed()


def route_call(
    route_as_celery: Callable[..., Options],
    router: Router,
    options: Options,
    name: str,
    *rest: object,
    task: Task | None,
) -> Options:
    """Return *options* of a call as Celery's router returns them, with the resolved queue. *options* stay unchanged.

    Raises OptionError if the call's options are invalid, and QueueNotFound like Celery.
    """
    app = router.app
    options = dict(options)
    former = options.pop(PROPERTY, None)
    if task is None:
        task = tasks_of(app).get(name)
    type_of_call = as_affinity(options.get("affinity")).type
    places, is_retry = explicit_places(options, task)
    if type_of_call is not None:
        check_that_they_agree(type_of_call, places)
        type_ = None if "queue" in places else type_of_call
    elif places:
        type_ = None
    elif is_retry:
        queue = options.get("queue")
        type_ = str(queue) if type(queue) is FromFirstAttempt else None
    else:
        type_ = type_of_task(app, *_task_that_runs(app, task, name, *rest))
    if type_ is not None:
        options = {**without_place(options), "queue": type_}
    routed = route_as_celery(router, options, name, *rest)
    _refuse_deadline(routed, options, name)
    if type_of_call is None and not places and not is_retry and "affinity" in routed:
        by_route = as_affinity(routed["affinity"]).type
        if by_route is not None and by_route != type_:
            type_, routed["queue"] = by_route, by_route
            routed = router.expand_destination(routed)
    of_route = ("exchange", "routing_key", "exchange_type") if type_ is not None else ()  # the route's, for its queue
    for option in of_route:
        routed.pop(option, None)
    if is_retry:
        _drop_keys_of_route(routed, options)
    routed[PROPERTY] = _ROUTED if former is None else Routed(former)
    return routed


def _refuse_deadline(routed: Options, options: Options, name: str) -> None:
    """Raise OptionError if *options* have no deadline, but the *routed* options of a call of task *name* do."""
    if DEADLINE in routed and DEADLINE not in options and (error := wrong_place_of_deadline(routed, "a route")):
        raise OptionError(f"route of task {name}: {error}")


def _task_that_runs(app: Celery, task: Task | None, name: str, *rest: object) -> tuple[Task | None, str]:
    """Return *task* and *name*, or, for one of `MAPS`, the task and name that it runs.

    Celery forgets that task's name and route if the map is part of a group.
    """
    if getattr(task, "name", name) not in MAPS:
        return task, name
    name = mapped_type(rest[1] if len(rest) > 1 else None) or name
    return tasks_of(app).get(name), name


def mapped_type(arguments: object) -> str | None:
    """Return the name of the task that one of `MAPS` with these keyword arguments runs, or None if it is missing."""
    mapped = arguments.get("task") if isinstance(arguments, Mapping) else None
    name = mapped.get("task") if isinstance(mapped, Mapping) else getattr(mapped, "name", None)
    return name if isinstance(name, str) else None


def _drop_keys_of_route(routed: Options, options: Mapping[str, Any]) -> None:
    """Remove keys that only a route sets from a retry's *routed* options: the first attempt has resolved them."""
    for option in {*KEYS} - options.keys():
        routed.pop(option, None)
    if "affinity" not in options and (affinity := as_affinity(routed.get("affinity"))).keys:
        routed["affinity"] = replace(affinity, exclusive=None, rate=None)


def route_late(app: Celery, name: str, options: Options) -> None:
    """Write the resolved queue into *options* of a call that `route_call` has not seen.

    Such a call was routed before the process's first connection imported this module, or by a custom router, or it is a
    direct call of the app's ``send_task_message``. Any destination but the default is then treated as the caller's
    choice.
    """
    again = _route_again(name)
    if again is not None:
        again.pop(PROPERTY, None)
        _replace(options, again)
        return
    type_ = as_affinity(options.get("affinity")).type
    if type_ is None and _is_default(app, options):
        type_ = type_of_task(app, tasks_of(app).get(name), name)
    if type_ is not None:
        _replace(options, app.amqp.router.expand_destination(type_))


def type_of_task(app: Celery, task: Task | None, name: str) -> str | None:
    """Return the type of calls of *task*, or None if Celery chooses their queue. Raises OptionError, SettingError."""
    named = as_affinity(type_by_name(name, settings_of(app)))
    type_: str | None = resolve(
        "affinity", Sources(task_affinity=as_affinity(getattr(task, "affinity", None)), named=named)
    )
    return type_


def is_default_queue(app: Celery, exchange: object, routing_key: object) -> bool:
    """Return True if *exchange* and *routing_key* are the destination of messages without routing options."""
    conf = app.conf
    return (exchange or "") in ("", conf.task_default_exchange) and (routing_key or "") in (
        "",
        conf.task_default_queue,
        conf.task_default_routing_key,
    )


def _is_default(app: Celery, options: Mapping[str, Any]) -> bool:
    queue = place_name(options.get("queue"))
    named = queue in (None, "", app.conf.task_default_queue)
    return named and is_default_queue(app, place_name(options.get("exchange")), options.get("routing_key"))


def _route_again(name: str) -> Options | None:
    """Return the routed options of the ``apply_async`` call in progress, or None if there is none."""
    of_send_task, of_apply_async, *_ = (*option_sources.calls_in_progress(), option_sources.NONE, option_sources.NONE)
    send_values, apply_values = of_send_task.values, of_apply_async.values
    try:
        router, name = send_values["router"], send_values["route_name"] or name
        rest = [send_values[option] for option in _REST]
        merged, of_task = apply_values["options"], apply_values["preopts"]
    except KeyError:  # other functions, or another version of Celery
        return None
    if not isinstance(router, Router):
        return None
    options = {option: merged[option] for option in (*ROUTING, "affinity") if option in merged}
    for option in ROUTING:
        if options.get(option) is of_task.get(option):
            options[option] = mark_place(FromTask, options.get(option))
    routed: Options = router.route(options, name, *rest)
    return routed


_REST = ("args", "kwargs", "task_type")


def _replace(options: Options, place: Mapping[str, Any]) -> None:
    for name in _DESTINATION:
        options.pop(name, None)
    options.update({name: place[name] for name in _DESTINATION if name in place})


#: Maximum number of cached queues per app and per channel. When it is exceeded, the cache is cleared, so that a
#: publisher with generated queue names does not exhaust memory.
_MAX_QUEUES = 500

_QUEUES: "WeakKeyDictionary[Celery, dict[str, BoundOnce]]" = WeakKeyDictionary()


class BoundOnce(Queue):
    """A copy of *queue* that is bound once per channel of ours, and then kept in the channel's `bound_queues`."""

    queue: Queue

    def bind(self, channel: Any) -> Any:
        bound_queues: dict[str, Queue] | None = getattr(channel, "bound_queues", None)
        if bound_queues is None:
            return super().bind(channel)
        bound = bound_queues.get(self.name)
        if bound is None or bound.queue is not self.queue or bound.channel is not channel:
            bound = super().bind(channel)
            bound.queue = self.queue
            _remember(bound_queues, bound)
        return bound


def bind_once(app: Celery, declare: list[Queue]) -> None:
    """Replace the queues in *declare*, which a publish of *app* will declare, by `BoundOnce` queues."""
    queues = _QUEUES.setdefault(app, {})
    for index, queue in enumerate(declare):
        if type(queue) is Queue and app.amqp.queues.get(queue.name) is queue:
            bound = queues.get(queue.name)
            if bound is None or bound.queue is not queue:
                bound = BoundOnce(**queue.as_dict())
                bound.queue = queue
                _remember(queues, bound)
            declare[index] = bound


def _remember(queues: dict[str, Any], queue: BoundOnce) -> None:
    if len(queues) >= _MAX_QUEUES:
        queues.clear()
    queues[queue.name] = queue
