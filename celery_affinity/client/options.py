"""Mistakes in our options of tasks and calls: misspelt names, values not accepted.

What an option does is decided in `destination` (the type), `wish` (priority and mode) and `stated_rules` (the key).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.task import Task
from celery.canvas import Signature
from kombu import Producer

from ..errors import OptionError
from ..rules import spelling
from ..rules.affinity import NEEDS_LATE_ACKS, as_affinity
from ..rules.call_options import OPTIONS
from ..rules.keyed.key_rules import Rule, as_tenant
from ..rules.keyed.template import Arguments, Taken, complaint, taken_by
from ..rules.merging import Merge

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


def unfilled(options: Options, task_name: str, arguments: Arguments) -> str | None:
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
    return complaint(rule.option, rule.key, task_name, arguments)


def unfilled_by_task(task: Task | type[Task], name: str) -> str | None:
    """Return `unfilled` of a task, or of the class of one."""
    said = as_affinity(getattr(task, "affinity", None))
    return unfilled({"affinity": said}, name, arguments_of(task)) if said.has_rules else None


def arguments_of(task: Any) -> Taken:
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
