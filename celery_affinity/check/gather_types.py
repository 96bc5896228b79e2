"""Gather the types and the priorities that an app declares: in its tasks, its settings and its ``beat_schedule``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery import Celery

from ..client.of_app import type_by_name
from ..client.options_in_app import options_in_annotations, options_in_beat_schedule, options_in_routes
from ..client.priority_range import priorities_in
from ..errors import AffinityError
from ..rules.affinity import affinity_of, as_affinity, in_range
from ..rules.settings import Settings


def by_type(declared: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    found: dict[str, dict[str, None]] = {}
    for type_, who in declared:
        found.setdefault(type_, {})[who] = None
    yield from ((type_, tuple(who)) for type_, who in sorted(found.items()))


def declared_types(app: Celery, own: Settings, refused: list[str]) -> Iterator[tuple[str, str]]:
    """Yield types with their declarations: tasks, routes, patterns, beat_schedule entries. Errors go to *refused*."""
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery."):
            type_ = _type_of_task(app, own, name, task, refused)
            if type_:
                yield type_, f"task {name}"
    for pattern, type_ in own.task_types.items():
        yield type_, f"affinity_task_types {pattern!r}"
    for where, options in _given_options(app):
        type_ = _type_of_options(options)
        if type_:
            yield type_, where


def _type_of_task(app: Celery, own: Settings, name: str, task: Any, refused: list[str]) -> str | None:
    """Return the type of a call without options. Whatever may name the type is asked in the order of publishing."""
    given = {name: value for name, value in task._get_exec_options().items() if value is not None}
    try:
        options = app.amqp.router.route(given, name, (), {}, task)
    except Exception:  # a router of the user's may look at arguments, or want a queue that is not declared
        options = {}
    try:
        affinities = [as_affinity(options.get("affinity")), affinity_of(task)]
    except AffinityError as exc:
        refused.append(f"task {name}: {exc}")
        return None
    types = [*(each.type for each in affinities), type_by_name(name, own), _name_of(options.get("queue"))]
    return next((type_ for type_ in types if type_), None)


def _given_options(app: Celery) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the options in task_routes and in beat_schedule entries, each with its place."""
    yield from options_in_routes(app.conf)
    yield from options_in_beat_schedule(app.conf)


def _type_of_options(options: Mapping[str, Any]) -> str | None:
    try:
        return as_affinity(options.get("affinity")).type or _name_of(options.get("queue"))
    except AffinityError:  # `wrong_in_app` has it
        return None


def _name_of(queue: Any) -> str | None:
    return queue if isinstance(queue, str) else getattr(queue, "name", None)


def priorities(app: Celery) -> Iterator[str]:
    """Yield the places that use Celery's own priority, not that of `Affinity`."""
    if app.conf.task_default_priority is not None:
        yield "task_default_priority"
    for name, task in sorted(app.tasks.items()):
        if getattr(task, "priority", None) not in (None, app.conf.task_default_priority):
            yield f"task {name}"
    for where, options in _given_options(app):
        if options.get("priority") is not None:
            yield where


def out_of_range(app: Celery) -> Iterator[str]:
    """Yield each priority outside of 0 to 10 that an app on this transport declares, with its place."""
    default = app.conf.task_default_priority
    places = [("task_default_priority", {"priority": default}), *options_in_annotations(app.conf), *_given_options(app)]
    for name, task in sorted(app.tasks.items()):
        own = {each: getattr(task, each, None) for each in ("priority", "affinity")}
        places.append((f"task {name}", {each: value for each, value in own.items() if value != default}))
    for where, options in places:
        for priority in priorities_in(options):
            if in_range(priority) != priority:
                yield f"{where}: priority {priority} counts as {in_range(priority)}"
