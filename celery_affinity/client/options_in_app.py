"""Where an app's configuration has options of calls and tasks: routes, annotations, entries of `beat_schedule`."""

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery
from celery.app.utils import Settings as Conf

from .options import Options


def schedules_all(app: Celery) -> bool:
    """Return whether *app* leaves no queue to kombu, as far as its configuration is known."""
    keys = app.conf.keys() if app.configured else app._preconf
    return not any(key.lower().endswith("affinity_queues") for key in keys)


def options_in_routes(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield the routes of ``task_routes``, each after its place in words; with *name*, those of that task."""
    for pairs in _each(conf.task_routes):
        for pair in pairs.items() if isinstance(pairs, Mapping) else pairs if isinstance(pairs, list | tuple) else ():
            if isinstance(pair, list | tuple) and len(pair) == 2 and (name is None or _matches(pair[0], name)):
                pattern, route = pair
                shown = getattr(pattern, "pattern", pattern)
                yield f"task_routes {shown!r}", route if isinstance(route, Mapping) else {"queue": route}


def options_in_annotations(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield the options in ``task_annotations``, each after its place in words; with *name*, those of that task."""
    for each in _each(conf.task_annotations):
        for task, options in each.items() if isinstance(each, Mapping) else ():
            if isinstance(options, Mapping) and (name is None or task in (name, "*")):
                yield f"task_annotations {task!r}", options


def options_in_beat_schedule(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield the options of the entries of ``beat_schedule``, each after its place; with *name*, those of that task."""
    for key, entry in (conf.beat_schedule or {}).items():
        task, options = (
            entry.get(each) if isinstance(entry, Mapping) else getattr(entry, each, None)
            for each in ("task", "options")
        )
        if name is None or task == name:
            yield f"beat_schedule entry {key!r}", options if isinstance(options, Mapping) else {}


def _part(entry: object, name: str) -> object:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _each(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def _matches(pattern: Any, name: str) -> bool:
    """Return whether *pattern*, a key of ``task_routes``, stands for task *name*."""
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern) if "*" in pattern else pattern == name
    return bool(hasattr(pattern, "match") and pattern.match(name))
