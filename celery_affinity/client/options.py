"""Mistakes in our options of tasks, calls and an app's configuration: misspelt names, values not accepted.

What an option does is decided in `destination` (the type), `stamping` (priority and mode) and `job_rules` (the key).
"""

import fnmatch
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.task import Task
from celery.app.utils import Settings as Conf
from celery.canvas import Signature
from kombu import Producer

from ..errors import OptionError, SettingError
from ..rules import spelling
from ..rules.affinity import affinity_of, as_affinity
from ..rules.call_options import KEYS, OPTIONS
from ..rules.keyed.key_rules import Rule
from ..rules.keyed.template import Arguments, Taken, TemplateField, complaint, parsed, taken_by
from ..rules.merging import Merge
from ..rules.settings import PREFIX, Settings
from . import merge_functions, stated_rules
from .of_app import rules_by_name, settings_of

#: Options that may be misspelt.
MISSPELT = tuple(name for name, option in OPTIONS.items() if option.may_be_misspelt)

#: Options of which each is right or wrong by itself. Of two keys in one call, each may be right.
_ALONE = {name: option.check for name, option in OPTIONS.items() if name not in KEYS}

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


# -- what is wrong


def wrong_name(options: Options) -> str | None:
    """Return a complaint about the names of *options*; None if none is wrong. Names of stamps are the user's own."""
    for name in options:
        if name not in KNOWN and isinstance(name, str):
            meant = spelling.meant(name, MISSPELT)
            if meant is not None and name not in (options.get("stamped_headers") or ()):
                return f"unknown option {name!r}; did you mean {meant!r}?"
    return None


def wrong_value(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return a complaint about the values of our options of a call, or else *of_task*; None if none is wrong.

    On a queue that is not *scheduled*, any priority is right.
    """
    stamps = options.get("stamped_headers") or ()
    for name, check in _ALONE.items():
        value = options.get(name)
        if value is not None and name not in stamps and (scheduled or name != "priority"):
            try:
                check(value)
            except OptionError as exc:
                return str(exc)
    return _wrong_in_task(options) if of_task else _wrong_rule(options, stamps)


def _wrong_rule(options: Options, stamps: Collection[str]) -> str | None:
    """Return a complaint about the key in *options* of a call."""
    if not any(name in options for name in KEYS):
        return None
    try:
        stated_rules.checked({name: options.get(name) for name in KEYS if name not in stamps})
    except OptionError as exc:
        return str(exc)
    return None


def _wrong_in_task(options: Options) -> str | None:
    """Return a complaint about a key that a task says in a call's way. Other values are the user's own."""
    for name in (*(name for name, option in OPTIONS.items() if option.is_of_calls), Merge.option):
        value = options.get(name)
        if isinstance(value, Rule | Merge) or (name == "exclusive" and isinstance(value, str)):
            what = "no option of its own" if name == Merge.option else "an option of calls"
            return f"{name}= is {what}; a task has it in its affinity: Affinity({name}={value!r})"
    return None


def unfilled(options: Options, task_name: str, arguments: Arguments) -> str | None:
    """Return a complaint about a key in ``affinity`` of *options* that no call of a task can fill; None if some can."""
    said = as_affinity(options.get("affinity"))
    return _unfilled(said.rule, task_name, arguments) or _unfilled(said.merge, task_name, arguments)


def _unfilled(rule: Rule | Merge | None, task_name: str, arguments: Arguments) -> str | None:
    if rule is None or not isinstance(rule.key, str):
        return None
    return complaint(rule.option, rule.key, task_name, arguments)


def unfilled_by_task(task: Task | type[Task], name: str) -> str | None:
    """Return `unfilled` of a task, or of the class of one."""
    said = as_affinity(getattr(task, "affinity", None))
    return unfilled({"affinity": said}, name, _arguments_of(task)) if said.has_rules else None


def _arguments_of(task: Any) -> Arguments:
    run = task.run
    if isinstance(task, type):
        return Taken(run, but_first=not isinstance(inspect.getattr_static(task, "run"), staticmethod))
    return taken_by(run)


def attributes(task: Task | type[Task]) -> dict[str, Any]:
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


def wrong(options: Options, *, scheduled: bool = True, of_task: bool = False) -> str | None:
    """Return a complaint about names or values of *options* of a call, or else *of_task*; None if none is wrong."""
    return wrong_name(options) or wrong_value(options, scheduled=scheduled, of_task=of_task)


def schedules_all(app: Celery) -> bool:
    """Return whether *app* leaves no queue to kombu, as far as its configuration is known."""
    keys = app.conf.keys() if app.configured else app._preconf
    return not any(key.lower().endswith(f"{PREFIX}queues") for key in keys)


# -- options in an app's configuration


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


def options_in_beat(conf: Conf) -> Iterator[tuple[str, Options]]:
    """Yield the options of the entries of ``beat_schedule``, each after its place in words."""
    for name, entry in (conf.beat_schedule or {}).items():
        options = entry.get("options") if isinstance(entry, Mapping) else getattr(entry, "options", None)
        yield f"beat_schedule entry {name!r}", options if isinstance(options, Mapping) else {}


def _each(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def _matches(pattern: Any, name: str) -> bool:
    """Return whether *pattern*, a key of ``task_routes``, stands for task *name*."""
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern) if "*" in pattern else pattern == name
    return bool(hasattr(pattern, "match") and pattern.match(name))


class Wrong(NamedTuple):
    """A complaint about an option. *where*: the place in words. *misspelt*: the name is wrong, else the value is."""

    where: str
    what: str
    misspelt: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def wrong_with_app(app: Celery) -> Iterator[Wrong]:
    """Yield complaints about routes, annotations and tasks of *app*, which is finalized."""
    scheduled = schedules_all(app)
    annotated = list(options_in_annotations(app.conf))
    said = {name for _, options in annotated for name in options}
    tasks = [
        (f"task {name}", {name: value for name, value in attributes(task).items() if name not in said})
        for name, task in sorted(app.tasks.items())
        if not name.startswith("celery.")
    ]
    for where, options in options_in_routes(app.conf):
        yield from wrong_in(where, options, scheduled=scheduled)
    for where, options in (*annotated, *tasks):
        yield from wrong_in(where, options, scheduled=scheduled, of_task=True)
    yield from _wrong_keys(app)


def _wrong_keys(app: Celery) -> Iterator[Wrong]:
    """Yield complaints about keys that no call of their tasks can fill, each said by the task or for its name."""
    try:
        settings = settings_of(app)
    except SettingError:  # whoever reads the settings next says so
        settings = Settings()
    tasks = ((name, task) for name, task in sorted(app.tasks.items()) if not name.startswith("celery."))
    for name, task in tasks:
        with suppress(OptionError):  # of a value: `wrong_in` has it
            if found := unfilled_by_task(task, name):
                yield Wrong(f"task {name}", found, False)
                continue
            own, named = affinity_of(task), rules_by_name(name, settings)
            left = (None if own.rule else named.rule), (None if own.merge else named.merge)
            for each in left:
                if found := _unfilled(each, name, _arguments_of(task)):
                    yield Wrong(f"{PREFIX}task_rules", found, False)
            if found := merge_functions.wrong(own.merge or left[1]):
                yield Wrong(f"task {name}" if own.merge else f"{PREFIX}task_rules", found, False)


def wrong_in(where: str, options: Options, *, scheduled: bool, of_task: bool = False) -> Iterator[Wrong]:
    """Yield complaints about *options* of calls, or else *of_task*, one for each name."""
    for name, value in options.items():
        alone = {name: value, "stamped_headers": options.get("stamped_headers")}
        if found := wrong_name(alone):
            yield Wrong(where, found, True)
        elif found := wrong_value(alone, scheduled=scheduled, of_task=of_task):
            yield Wrong(where, found, False)
        elif not of_task and name == "exclusive" and _looks_like_a_template(value):
            words = f"exclusive= has the key itself, got: {value!r}; for a template write Exclusive({value!r})"
            yield Wrong(where, words, False)


def _looks_like_a_template(key: object) -> bool:
    """Return whether *key*, in a configuration, is not what its author means: one key of that name for all calls."""
    with suppress(OptionError):
        return isinstance(key, str) and any(isinstance(part, TemplateField) for part in parsed("exclusive", key))
    return False


def check_app(app: Celery) -> None:
    """Raise OptionError if a route, an annotation or a task of *app*, which is finalized, has a wrong option."""
    for each in wrong_with_app(app):
        raise OptionError(str(each))
