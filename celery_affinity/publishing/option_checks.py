"""Checks of this package's options of tasks and calls: misspelt names, invalid values, priorities out of range.

Also here: the places of options in an app's configuration (routes, annotations, `beat_schedule`). A priority outside of
0 to 10 is clamped, with a warning to the publisher.
"""

import fnmatch
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.task import Task
from celery.app.utils import Settings as Conf
from celery.canvas import Signature
from kombu import Producer

from ..errors import OptionError
from ..log_limit import limited_logger
from ..options import did_you_mean
from ..options.affinity import NEEDS_LATE_ACKS, as_affinity, whole_priority
from ..options.call_options import OPTIONS, Sources
from ..options.due_times import DEADLINE, WITHIN, is_deadline, refuse_fixed_deadline, seconds_until
from ..options.key_templates import Arguments, ReadArguments, arguments_read_by, template_complaint
from ..options.keys import Rule, Size, as_size, as_tenant
from ..options.merge import Merge
from ..schema.constants import MAX_PRIORITY
from .app_config import sources_of_task

if TYPE_CHECKING:
    from ..settings.table import Settings

#: Options whose misspelt names are detected.
MISSPELT = tuple(name for name, option in OPTIONS.items() if option.may_be_misspelt)
#: Options by name, as users write them. Neither names nor values are checked yet.
Options = Mapping[Any, Any]


#: Names that are never misspelt: the options of Celery, kombu and this package.
KNOWN = frozenset(
    {
        *OPTIONS,
        *dir(Task),
        *(
            name
            for function in (
                *(Task.apply, Task.apply_async, Task.retry, Signature.set, Celery.send_task),
                *(AMQP.as_task_v1, AMQP.as_task_v2, Producer.publish),
            )
            for name in inspect.signature(function).parameters
        ),
        *(
            "base",
            "compression",
            "exchange_type",
            "lazy",
            "shared",
            "filter",
            "queue",
            "routing_key",
            "stamped_headers",
            "headline",  # a word of its own, not a misspelt deadline
        ),
    }
)


def wrong_name_error(options: Options) -> str | None:
    """Return the error in the names of *options*, or None. Names of stamps are up to the user."""
    for name in options:
        if name not in KNOWN and isinstance(name, str):
            meant = did_you_mean.closest_match(name, MISSPELT)
            if meant is not None and name not in (options.get("stamped_headers") or ()):
                return f"unknown option {name!r}; did you mean {meant!r}?"
    return None


def wrong_value_error(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return the error in the values of this package's options of a call, or *of_task*, or None.

    On a queue that is not *scheduled*, any priority is valid.
    """
    stamps = options.get("stamped_headers") or ()
    for name, option in OPTIONS.items():
        value = options.get(name)
        is_checked = (scheduled or name != "priority") and not (of_task and option.is_of_calls)
        if value is not None and name not in stamps and is_checked:
            try:
                option.read(value)
            except OptionError as exc:
                return str(exc)
    return _wrong_task_option(options) if of_task else None


def _wrong_task_option(options: Options) -> str | None:
    """Return the error for a key that a task sets like a call, or None. Other values are up to the user."""
    for name in (*(name for name, option in OPTIONS.items() if option.is_of_calls), Merge.option):
        value = options.get(name)
        if isinstance(value, Rule | Merge) or (name in ("exclusive", "tenant") and isinstance(value, str)):
            kind = "no option of its own" if name == Merge.option else "an option of calls"
            return f"{name}= is {kind}; a task has it in its affinity: Affinity({name}={value!r})"
    return wrong_place_of_deadline(options, "a task")


def wrong_place_of_deadline(options: Options, place: str) -> str | None:
    """Return the error if *options* of *place*, which is not a call, have a deadline, or None."""
    value = options.get(DEADLINE)
    if DEADLINE in (options.get("stamped_headers") or ()) or not (isinstance(value, datetime) or is_deadline(value)):
        return None
    return f"{DEADLINE}= is an option of calls and signatures, got: {value!r}; {place} can have {WITHIN}="


def wrong_repeated_deadline(options: Options, *, is_route: bool) -> str | None:
    """Return the error for a deadline in valid *options* of a route or of a ``beat_schedule`` entry, or None."""
    if is_route:
        return wrong_place_of_deadline(options, "a route")
    try:
        refuse_fixed_deadline(options)
    except OptionError as exc:
        return str(exc)
    return None


def acked_too_early(options: Options, acks_late: object) -> str | None:
    """Return the error for a task with valid *options* that is preemptible but cannot run again, or None.

    *acks_late* is the task's setting, or None if it is not available yet.
    """
    preemptible_of_affinity = as_affinity(options.get("affinity")).preemptible
    preemptible = options.get("preemptible") if preemptible_of_affinity is None else preemptible_of_affinity
    return NEEDS_LATE_ACKS if preemptible is True and acks_late is not None and not acks_late else None


def unfilled_template(options: Options, task_name: str, arguments: Arguments) -> str | None:
    """Return the error for a key in *options*' ``affinity`` that no call of the task can fill, or None."""
    affinity = as_affinity(options.get("affinity"))
    return next(
        filter(
            None,
            (
                unfilled_rule(rule, task_name, arguments)
                for rule in (*affinity.keys, as_tenant(affinity.tenant), affinity.merge, as_size(affinity.size))
            ),
        ),
        None,
    )


def unfilled_rule(rule: Rule | Merge | Size | None, task_name: str, arguments: Arguments) -> str | None:
    if rule is None or not isinstance(rule.key, str):
        return None
    return template_complaint(rule.option, rule.key, task_name, arguments)


def unfilled_by_task(task: Task | type[Task], name: str) -> str | None:
    """Return the result of `unfilled_template` for a task or a task class."""
    affinity = as_affinity(getattr(task, "affinity", None))
    has_templates = affinity.has_rules or affinity.size
    return unfilled_template({"affinity": affinity}, name, arguments_of(task)) if has_templates else None


def arguments_of(task: Any) -> ReadArguments:
    run = task.run
    if isinstance(task, type):
        return ReadArguments(run, skip_first=not isinstance(inspect.getattr_static(task, "run"), staticmethod))
    return arguments_read_by(run)


def option_attributes(task: Task | type[Task]) -> dict[str, Any]:
    """Return the attributes of a task or task class, without methods and attributes of Celery's classes."""
    cls = task if isinstance(task, type) else type(task)
    attributes: dict[str, object] = {}
    for class_ in reversed(cls.__mro__):
        if class_ not in Task.__mro__:
            attributes.update(vars(class_))
    if cls is not task:
        attributes.update(vars(task))
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and not callable(value) and not hasattr(value, "__get__")
    }


def wrong_option_error(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return the error in the names or values of *options* of a call, or *of_task*, or None."""
    return wrong_name_error(options) or wrong_value_error(options, scheduled=scheduled, of_task=of_task)


def schedules_all(app: Celery) -> bool:
    """Return True if *app* leaves no queue to kombu, as far as its configuration is loaded."""
    keys = app.conf.keys() if app.configured else app._preconf
    return not any(key.lower().endswith("affinity_queues") for key in keys)


def options_in_routes(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield (place as text, route) for the routes in ``task_routes``, or only for task *name*."""
    for pairs in _as_tuple(conf.task_routes):
        for pair in pairs.items() if isinstance(pairs, Mapping) else pairs if isinstance(pairs, list | tuple) else ():
            if isinstance(pair, list | tuple) and len(pair) == 2 and (name is None or _matches(pair[0], name)):
                pattern, route = pair
                shown = getattr(pattern, "pattern", pattern)
                yield f"task_routes {shown!r}", route if isinstance(route, Mapping) else {"queue": route}


def options_in_annotations(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield (place as text, options) for ``task_annotations``, or only for task *name*."""
    for annotations in _as_tuple(conf.task_annotations):
        for task, options in annotations.items() if isinstance(annotations, Mapping) else ():
            if isinstance(options, Mapping) and (name is None or task in (name, "*")):
                yield f"task_annotations {task!r}", options


def options_in_beat_schedule(conf: Conf, name: str | None = None) -> Iterator[tuple[str, Options]]:
    """Yield (place as text, options) for the entries of ``beat_schedule``, or only for task *name*."""
    for key, entry in (conf.beat_schedule or {}).items():
        task, options = (
            entry.get(field) if isinstance(entry, Mapping) else getattr(entry, field, None)
            for field in ("task", "options")
        )
        if name is None or task == name:
            yield f"beat_schedule entry {key!r}", options if isinstance(options, Mapping) else {}


def sources_without_call(app: Celery, name: str, task: object, settings: "Settings") -> Sources:
    """Return the sources of a call without options: its first matching route, its task and its name.

    A route that only a custom router returns is not included. Raises OptionError.
    """
    route = next((options for _, options in options_in_routes(app.conf, name)), {})
    return sources_of_task(name, task, settings)._replace(
        options=route,
        call_affinity=as_affinity(route.get("affinity")),
        task_options={option: getattr(task, option, None) for option in ("priority", "queue")},
    )


def _as_tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def _matches(pattern: Any, name: str) -> bool:
    """Return True if *pattern*, a key of ``task_routes``, matches task *name*."""
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern) if "*" in pattern else pattern == name
    return bool(hasattr(pattern, "match") and pattern.match(name))


logger = limited_logger(__name__)
#: Maximum number of warnings per process. Otherwise `_warned` would grow in a program that generates priorities.
_MAX_WARNINGS = 10_000
_warned: set[tuple[str, int]] = set()


def warn_out_of_range(app: Celery, task_name: str, headers: Mapping[str, object], given: int, counted: int) -> None:
    """Log that a call with priority *given* is published with priority *counted*, once per source and priority."""
    place = _place(app, task_name, headers, given)
    if (place, given) in _warned or len(_warned) >= _MAX_WARNINGS:
        return
    _warned.add((place, given))
    logger.warning("%s: priority %d is outside of 0 to %d, and counts as %d", place, given, MAX_PRIORITY, counted)


def warn_of_deadline(task_name: str, deadline: str, starts_s: float) -> None:
    """Log that a call of *task_name*, which starts at the Unix time *starts_s* at the earliest, misses its deadline."""
    late_s = -seconds_until(deadline, starts_s)
    if late_s >= 0:
        logger.warning(
            "The deadline %s of a call of task %s cannot be met: it is %.1f s before the call can start",
            deadline,
            task_name,
            late_s,
        )


def _place(app: Celery, task_name: str, headers: Mapping[str, object], given: int) -> str:
    """Return the source of the priority *given*, for a log line: a celery beat entry, a setting, or the call."""
    periodic = headers.get("periodic_task_name")  # a header set by django-celery-beat
    if isinstance(periodic, str):
        return f"Periodic task {periodic[:200]!r}"
    configured = chain(
        options_in_beat_schedule(app.conf, task_name),
        options_in_routes(app.conf, task_name),
        options_in_annotations(app.conf, task_name),
    )
    return next(
        (where for where, options in configured if given in priorities_in(options)), f"Call of task {task_name}"
    )


def priorities_in(options: Options) -> Iterator[int]:
    """Yield the original priorities in *options*, before clamping: from ``priority`` and from ``affinity=``."""
    with suppress(OptionError):  # `wrong_option_error` reports invalid values
        yield from (whole_priority(priority) for priority in (options.get("priority"),) if priority is not None)
    with suppress(OptionError):
        yield from (priority for priority in (as_affinity(options.get("affinity")).priority,) if priority is not None)
