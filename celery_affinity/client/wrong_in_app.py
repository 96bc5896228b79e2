"""Wrong options in an app: in its routes, its annotations, its tasks and the rules of their names."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from celery import Celery

from ..errors import OptionError, SettingError
from ..rules.affinity import RULES, affinity_of
from ..rules.keyed.template import TemplateField, parsed
from ..rules.settings import PREFIX, Settings
from . import merge_functions
from .of_app import has_own_strategy, rules_by_name, settings_of
from .options import (
    Options,
    acked_too_early,
    arguments_of,
    attributes,
    unfilled_by_task,
    unfilled_rule,
    wrong_name,
    wrong_value,
)
from .options_in_app import options_in_annotations, options_in_routes, schedules_all

#: Option that says a key by itself -> what says its template instead.
_TEMPLATES = {"exclusive": "Exclusive({!r})", "tenant": "affinity=Affinity(tenant={!r})"}


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
            for each in (getattr(named, option) for option in RULES if not getattr(own, option)):
                if found := unfilled_rule(each, name, arguments_of(task)):
                    yield Wrong(f"{PREFIX}task_rules", found, False)
            if found := acked_too_early({"affinity": own}, bool(task.acks_late)):
                yield Wrong(f"task {name}", found, False)
            elif own.preemptible is None and (found := acked_too_early({"affinity": named}, bool(task.acks_late))):
                yield Wrong(f"{PREFIX}task_rules of task {name}", found, False)
            if (own.merge or named.merge) and has_own_strategy(task):
                words = (
                    "merge does not work with a Strategy of the task's own that gathers calls, as celery-batches has: "
                    'take its base class away; for the calls as a list write Merge(..., keep="all", split=...)'
                )
                yield Wrong(f"task {name}", words, False)
            if found := merge_functions.wrong(own.merge or named.merge):
                yield Wrong(f"task {name}" if own.merge else f"{PREFIX}task_rules", found, False)


def wrong_in(where: str, options: Options, *, scheduled: bool, of_task: bool = False) -> Iterator[Wrong]:
    """Yield complaints about *options* of calls, or else *of_task*, one for each name."""
    for name, value in options.items():
        alone = {name: value, "stamped_headers": options.get("stamped_headers")}
        if found := wrong_name(alone):
            yield Wrong(where, found, True)
        elif found := wrong_value(alone, scheduled=scheduled, of_task=of_task):
            yield Wrong(where, found, False)
        elif not of_task and name in _TEMPLATES and _looks_like_a_template(value):
            words = f"{name}= has the key itself, got: {value!r}; for a template write {_TEMPLATES[name].format(value)}"
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
