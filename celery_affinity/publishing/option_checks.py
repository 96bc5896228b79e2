"""Mistakes in our options of tasks and calls: misspelt names, values not accepted.

What an option does is decided in `destination` (the type), `wish` (priority and mode) and `stated_rules` (the key).

Where an app's configuration has options of calls and tasks: routes, annotations, entries of `beat_schedule`.

Warn a publisher about a priority outside of 0 to 10. The nearest priority in the range is used.
"""

import fnmatch
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

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
from ..options.call_options import OPTIONS
from ..options.key_templates import Arguments, ReadArguments, arguments_read_by, template_complaint
from ..options.keys import Rule, as_tenant
from ..options.merge import Merge
from ..schema.constants import MAX_PRIORITY

#: Options that may be misspelt.
MISSPELT = tuple(name for name, option in OPTIONS.items() if option.may_be_misspelt)
#: Options by name, as users write them: neither names nor values are checked yet.
Options = Mapping[Any, Any]


def _parameters(*functions: Callable[..., Any]) -> set[str]:
    return {name for function in functions for name in inspect.signature(function).parameters}


#: Names that are never misspelt: the options of Celery and kombu, and ours.
KNOWN = frozenset(
    {
        *OPTIONS,
        *dir(Task),
        *_parameters(
            Task.apply,
            Task.apply_async,
            Task.retry,
            Signature.set,
            Celery.send_task,
            AMQP.as_task_v1,
            AMQP.as_task_v2,
            Producer.publish,
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
        ),
    }
)


def wrong_name_error(options: Options) -> str | None:
    """Return a complaint about the names of *options*; None if none is wrong. Names of stamps are the user's own."""
    for name in options:
        if name not in KNOWN and isinstance(name, str):
            meant = did_you_mean.closest_match(name, MISSPELT)
            if meant is not None and name not in (options.get("stamped_headers") or ()):
                return f"unknown option {name!r}; did you mean {meant!r}?"
    return None


def wrong_value_error(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return a complaint about the values of our options of a call, or else *of_task*; None if none is wrong.

    On a queue that is not *scheduled*, any priority is right.
    """
    stamps = options.get("stamped_headers") or ()
    for name, option in OPTIONS.items():
        value = options.get(name)
        is_checked = (scheduled or name != "priority") and not (of_task and option.is_of_calls)
        if value is not None and name not in stamps and is_checked:
            try:
                option.check(value)
            except OptionError as exc:
                return str(exc)
    return _wrong_in_task(options) if of_task else None


def _wrong_in_task(options: Options) -> str | None:
    """Return a complaint about a key that a task says in a call's way. Other values are the user's own."""
    for name in (*(name for name, option in OPTIONS.items() if option.is_of_calls), Merge.option):
        value = options.get(name)
        if isinstance(value, Rule | Merge) or (name in ("exclusive", "tenant") and isinstance(value, str)):
            what = "no option of its own" if name == Merge.option else "an option of calls"
            return f"{name}= is {what}; a task has it in its affinity: Affinity({name}={value!r})"
    return None


def acked_too_early(options: Options, acks_late: object) -> str | None:
    """Return a complaint about a task with *options*, all of which are accepted, that may be stopped but not run again.

    None if there is none. *acks_late*: the task's; None: nobody knows yet.
    """
    said = as_affinity(options.get("affinity")).preemptible
    preemptible = options.get("preemptible") if said is None else said
    return NEEDS_LATE_ACKS if preemptible is True and acks_late is not None and not acks_late else None


def unfilled_template(options: Options, task_name: str, arguments: Arguments) -> str | None:
    """Return a complaint about a key in ``affinity`` of *options* that no call of a task can fill; None if some can."""
    said = as_affinity(options.get("affinity"))
    return next(
        filter(
            None,
            (unfilled_rule(rule, task_name, arguments) for rule in (*said.keys, as_tenant(said.tenant), said.merge)),
        ),
        None,
    )


def unfilled_rule(rule: Rule | Merge | None, task_name: str, arguments: Arguments) -> str | None:
    if rule is None or not isinstance(rule.key, str):
        return None
    return template_complaint(rule.option, rule.key, task_name, arguments)


def unfilled_by_task(task: Task | type[Task], name: str) -> str | None:
    """Return `unfilled` of a task, or of the class of one."""
    said = as_affinity(getattr(task, "affinity", None))
    return unfilled_template({"affinity": said}, name, arguments_of(task)) if said.has_rules else None


def arguments_of(task: Any) -> ReadArguments:
    run = task.run
    if isinstance(task, type):
        return ReadArguments(run, skip_first=not isinstance(inspect.getattr_static(task, "run"), staticmethod))
    return arguments_read_by(run)


def option_attributes(task: Task | type[Task]) -> dict[str, Any]:
    """Return the attributes of a task or of a task's class, without methods, and without those of Celery's classes."""
    cls = task if isinstance(task, type) else type(task)
    found: dict[str, object] = {}
    for each in reversed(cls.__mro__):
        if each not in Task.__mro__:
            found.update(vars(each))
    if cls is not task:
        found.update(vars(task))
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and not callable(value) and not hasattr(value, "__get__")
    }


def wrong_option_error(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return a complaint about names or values of *options* of a call, or else *of_task*; None if none is wrong."""
    return wrong_name_error(options) or wrong_value_error(options, scheduled=scheduled, of_task=of_task)


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


logger = limited_logger(__name__)
#: Maximum number of warnings per process. Otherwise `_warned` would grow in a program that generates priorities.
_MOST = 10_000
_warned: set[tuple[str, int]] = set()


def warn_out_of_range(app: Celery, task_name: str, headers: Mapping[str, object], given: int, counted: int) -> None:
    """Log that a call with priority *given* is published with priority *counted*, once per source and priority."""
    place = _place(app, task_name, headers, given)
    if (place, given) in _warned or len(_warned) >= _MOST:
        return
    _warned.add((place, given))
    logger.warning("%s: priority %d is outside of 0 to %d, and counts as %d", place, given, MAX_PRIORITY, counted)


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
    with suppress(OptionError):  # `wrong_in_app` reports invalid values
        yield from (whole_priority(each) for each in (options.get("priority"),) if each is not None)
    with suppress(OptionError):
        yield from (each for each in (as_affinity(options.get("affinity")).priority,) if each is not None)
