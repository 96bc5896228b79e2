"""The destination of a call's message: Celery's router puts the queue of the type in its place.

So everything that comes later sees the queue as if the call had said ``queue=``: signals, headers, events, the
declaration, the worker's ``delivery_info``, and a retry, which goes where its first try went.

The first of these sources that says something counts:

1. the call: its ``affinity=``, or its ``queue=``, ``routing_key=``, ``exchange=``;
2. where the first try went, for a retry;
3. an ``affinity`` in ``task_routes``;
4. the task's ``affinity=``;
5. a name pattern in ``affinity_task_types``;
6. Celery's own: the task's attributes, its route, the default queue.

`places` tells what the caller said from what Celery added.

Queues that are bound to a channel once, not for each message.

With each message Celery has kombu declare the queue. kombu binds a copy of queue and exchange to the channel, only to
find that the connection has declared that name before: a sixth of Celery's own work on a publish.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.routes import Router
from celery.app.task import Task
from kombu import Queue

from ..options.affinity import as_affinity
from ..options.call_options import KEYS
from . import option_sources
from .app_config import settings_of, tasks_of, type_by_name
from .message import PROPERTY
from .option_sources import (
    ROUTING,
    FromFirstTry,
    FromTask,
    Options,
    check_that_they_agree,
    explicit_places,
    mark_place,
    place_name,
    without_place,
)

#: The options of `ROUTING`, and one that belongs to an exchange.
_WHERE = (*ROUTING, "exchange_type")

#: Celery's own tasks that run another task for each of some arguments, and are routed by the name of that task.
MAPS = ("celery.map", "celery.starmap", "celery.chunks")


class Routed:
    """A call's option `PROPERTY` after the call was routed here. *former*: the option's value before."""

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
    """Return *options* of a call as Celery's router returns them, with the queue that counts; *options* stay unchanged.

    Raises OptionError if the call's options are not accepted, QueueNotFound as Celery does.
    """
    app = router.app
    options = dict(options)
    former = options.pop(PROPERTY, None)
    if task is None:
        task = tasks_of(app).get(name)
    asked = as_affinity(options.get("affinity")).type
    said, is_retry = explicit_places(options, task)
    if asked is not None:
        check_that_they_agree(asked, said)
        type_ = None if "queue" in said else asked
    elif said:
        type_ = None
    elif is_retry:
        queue = options.get("queue")
        type_ = str(queue) if type(queue) is FromFirstTry else None
    else:
        type_ = type_of_task(app, *_task_that_runs(app, task, name, *rest))
    if type_ is not None:
        options = {**without_place(options), "queue": type_}
    routed = route_as_celery(router, options, name, *rest)
    if asked is None and not said and not is_retry and "affinity" in routed:
        by_route = as_affinity(routed["affinity"]).type
        if by_route is not None and by_route != type_:
            type_, routed["queue"] = by_route, by_route
            routed = router.expand_destination(routed)
    of_route = ("exchange", "routing_key", "exchange_type") if type_ is not None else ()  # for the queue that it names
    for each in of_route:
        routed.pop(each, None)
    if is_retry:
        _drop_keys_of_route(routed, options)
    routed[PROPERTY] = _ROUTED if former is None else Routed(former)
    return routed


def _task_that_runs(app: Celery, task: Task | None, name: str, *rest: object) -> tuple[Task | None, str]:
    """Return *task* and *name*, or for one of `MAPS` those of the task that it runs.

    Celery itself forgets the name, and the route of that task, where the map is part of a group.
    """
    if getattr(task, "name", name) not in MAPS:
        return task, name
    name = mapped_type(rest[1] if len(rest) > 1 else None) or name
    return tasks_of(app).get(name), name


def mapped_type(arguments: object) -> str | None:
    """Return the name of the task that one of `MAPS` with these keyword arguments runs; None if they do not say."""
    mapped = arguments.get("task") if isinstance(arguments, Mapping) else None
    name = mapped.get("task") if isinstance(mapped, Mapping) else getattr(mapped, "name", None)
    return name if isinstance(name, str) else None


def _drop_keys_of_route(routed: Options, options: Mapping[str, Any]) -> None:
    """Drop from *routed* options what a route, and not the call, says of a retry's key: its first try has decided."""
    for each in {*KEYS} - options.keys():
        routed.pop(each, None)
    if "affinity" not in options and (asked := as_affinity(routed.get("affinity"))).keys:
        routed["affinity"] = replace(asked, exclusive=None, rate=None)


def route_late(app: Celery, name: str, options: Options) -> None:
    """Write the queue that counts into *options* of a call that `route` has not seen.

    Such a call was routed before its process's first connection imported this module, or by a router of the user's own;
    or somebody calls the app's ``send_task_message``. Any place but the default then counts as the caller's wish.
    """
    again = _routed_again(name)
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
    """Return the type of *task*, None if it has none. Raises OptionError, SettingError."""
    return as_affinity(getattr(task, "affinity", None)).type or type_by_name(name, settings_of(app))


def is_default_queue(app: Celery, exchange: object, routing_key: object) -> bool:
    """Return whether *exchange* and *routing_key* lead where *app* sends a message that says no place."""
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


def _routed_again(name: str) -> Options | None:
    """Return the options, routed here, of the call of ``apply_async`` that is under way; None if there is none."""
    of_send_task, of_apply_async, *_ = (*option_sources.calls_in_progress(), option_sources.NONE, option_sources.NONE)
    sending, calling = of_send_task.values, of_apply_async.values
    try:
        router, name, rest = sending["router"], sending["route_name"] or name, [sending[each] for each in _REST]
        merged, of_task = calling["options"], calling["preopts"]
    except KeyError:  # other functions, or another version of Celery
        return None
    if not isinstance(router, Router):
        return None
    options = {each: merged[each] for each in (*ROUTING, "affinity") if each in merged}
    for each in ROUTING:
        if options.get(each) is of_task.get(each):
            options[each] = mark_place(FromTask, options.get(each))
    routed: Options = router.route(options, name, *rest)
    return routed


_REST = ("args", "kwargs", "task_type")


def _replace(options: Options, place: Mapping[str, Any]) -> None:
    for name in _WHERE:
        options.pop(name, None)
    options.update({name: place[name] for name in _WHERE if name in place})


#: Largest number of queues that are remembered, for each app and for each channel. With one more, all are forgotten, so
#: that a publisher that makes up queues does not fill its memory.
_MOST = 500

_QUEUES: "WeakKeyDictionary[Celery, dict[str, BoundOnce]]" = WeakKeyDictionary()


class BoundOnce(Queue):
    """A copy of *queue* that is bound once to each channel of ours, and then kept in the channel's `bound_queues`."""

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
    """Replace the queues in *declare*, which a publish of *app* will declare, by queues that are bound once."""
    for at, queue in enumerate(declare):
        if type(queue) is Queue and app.amqp.queues.get(queue.name) is queue:
            declare[at] = _bound_once(app, queue)


def _bound_once(app: Celery, queue: Queue) -> BoundOnce:
    queues = _QUEUES.setdefault(app, {})
    found = queues.get(queue.name)
    if found is None or found.queue is not queue:
        found = BoundOnce(**queue.as_dict())
        found.queue = queue
        _remember(queues, found)
    return found


def _remember(queues: dict[str, Any], queue: BoundOnce) -> None:
    if len(queues) >= _MOST:
        queues.clear()
    queues[queue.name] = queue
