"""Reject misspelt names and invalid values of this package's options where they are written.

Celery accepts any option name: a task's option becomes an attribute of the task, a call's option a message property,
and a misspelt option has no effect. Options are checked in these places:

- decorators and ``register_task``. An app can choose its transport later: then the complaint is stored, and raised by
  ``finalize``, which runs before the app's first call and before a worker starts.
- ``set`` and ``retry``, when they are called; all other calls when Celery sends or runs them (`publish_call`). The
  task's class, which may be older than this module, is checked then too.
- ``task_routes`` and ``task_annotations``, when a worker starts, and by ``celery affinity check``.

Apps with another transport are ignored. Known options of Celery and kombu cost nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import celery
from celery import Celery, _state
from celery.app.routes import MapRoute
from celery.app.task import Task
from celery.canvas import Signature

from ..errors import OptionError, SettingError
from ..options.affinity import NEEDS_LATE_ACKS, as_affinity
from ..options.call_options import RULE_OPTIONS, resolve_source
from ..options.key_templates import ReadArguments, TemplateField, parse_template
from ..options.keys import as_size
from ..settings.table import PREFIX, Settings
from .app_config import (
    has_own_strategy,
    invalid_merge_functions,
    replaces,
    settings_of,
    sources_of_task,
    tasks_of,
    uses_affinity_transport,
)
from .option_checks import (
    KNOWN,
    Options,
    acked_too_early,
    arguments_of,
    option_attributes,
    options_in_annotations,
    options_in_routes,
    schedules_all,
    unfilled_by_task,
    unfilled_rule,
    unfilled_template,
    wrong_name_error,
    wrong_option_error,
    wrong_repeated_deadline,
    wrong_value_error,
)


def _transport(app: Celery) -> object:
    """Return the transport of *app* as far as it is configured, without loading the app's configuration."""
    if app.configured:
        return app.conf.broker_transport
    return next((value for key, value in app._preconf.items() if key.lower().endswith("broker_transport")), None)


def _acks_late(app: Celery) -> bool | None:
    """Return ``task_acks_late`` of *app* as far as it is configured, or None if the configuration is not loaded yet."""
    if app.configured:
        return bool(app.conf.task_acks_late)
    values = (value for key, value in app._preconf.items() if key.lower().endswith("acks_late"))
    return bool(next(values, False)) if _transport(app) is not None else None


# -- complaints stored until the app is finalized

_complaints: "WeakKeyDictionary[Celery, list[str]]" = WeakKeyDictionary()
#: Complaints about shared tasks, which every app has.
_shared_complaints: list[str] = []
_finalize = Celery.finalize


def _refuse_or_store(words: str, app: Celery) -> None:
    if uses_affinity_transport(_transport(app)):
        raise OptionError(words)
    _complaints.setdefault(app, []).append(words)


def _refuse_or_store_shared(words: str) -> None:
    if any(uses_affinity_transport(_transport(app)) for app in tuple(_state._get_active_apps())):
        raise OptionError(words)
    _shared_complaints.append(words)


def finalize_anyway(app: Celery) -> None:
    """Finalize *app* despite any complaints about its tasks."""
    _finalize(app)


# -- decorators and classes


def _wrong_in_decorator(options: Options, *, scheduled: bool, acks_late: bool | None) -> str | None:
    of_retries, of_base = options.get("retry_kwargs"), _in_base(options)
    return (
        wrong_option_error(options, scheduled=scheduled, of_task=True)
        or wrong_option_error(of_base, scheduled=scheduled, of_task=True)
        or wrong_option_error(of_retries if isinstance(of_retries, Mapping) else {}, scheduled=scheduled)
        or acked_too_early(both := {**of_base, **options}, both.get("acks_late", acks_late))
    )


def _in_base(options: Options) -> Options:
    base = options.get("base")
    return option_attributes(base) if isinstance(base, type) else {}


def _checking(
    decorate: Any,
    options: Options,
    scheduled: bool,
    name_of: Callable[[Any], str],
    refuse: Callable[[str], None],
    acks_late: bool | None = None,
) -> Any:
    """Return *decorate* for *options*. If they are wrong for a function, it first calls *refuse* with a complaint.

    *acks_late* is the default for tasks that do not set it, or None if it is not available yet.
    """
    error = _wrong_in_decorator(options, scheduled=scheduled, acks_late=acks_late) if options else None
    says = {"affinity": options.get("affinity", _in_base(options).get("affinity"))} if options and not error else {}
    if error is None and not as_affinity(says.get("affinity")).has_rules:
        return decorate

    def check(function: Any) -> None:
        name = name_of(function)
        if error is not None:
            refuse(f"task {name}: {error}")
        elif words := unfilled_template(says, name, ReadArguments(function, skip_first=bool(options.get("bind")))):
            refuse(words)

    def decorate_checked(*args: Any, **options: Any) -> Any:
        if args:
            check(args[0])
            return decorate(*args, **options)
        decorator = decorate(**options)

        def decorated(function: Any) -> Any:
            check(function)
            return decorator(function)

        return decorated

    return decorate_checked


@replaces(Celery, "task")
def _task(original: Any, /, app: Celery, *args: Any, **options: Any) -> Any:
    """Check the options of ``@app.task``, so that the traceback contains the wrong line."""

    def name_of(function: Any) -> str:
        return str(options.get("name") or app.gen_task_name(function.__name__, function.__module__))

    refuse = partial(_refuse_or_store, app=app)
    checked = _checking(partial(original, app), options, schedules_all(app), name_of, refuse, _acks_late(app))
    return checked(*args, **options)


@replaces(celery, "shared_task")
def _shared_task(original: Any, /, *args: Any, **options: Any) -> Any:
    def name_of(function: Any) -> str:
        return str(options.get("name") or f"{function.__module__}.{function.__name__}")

    return _checking(original, options, False, name_of, _refuse_or_store_shared)(*args, **options)


celery.app.shared_task = celery.shared_task


@replaces(Celery, "register_task")
def _register_task(original: Any, /, app: Celery, task: Any, **options: Any) -> Any:
    attributes = option_attributes(task)
    error = wrong_option_error(attributes, scheduled=schedules_all(app), of_task=True)
    error = error or acked_too_early(attributes, attributes.get("acks_late", _acks_late(app)))
    cls = task if isinstance(task, type) else type(task)
    name = task.name or app.gen_task_name(cls.__name__, cls.__module__)
    if error:
        _refuse_or_store(f"task {name}: {error}", app)
    elif words := unfilled_by_task(task, name):
        _refuse_or_store(words, app)
    return original(app, task, **options)


@replaces(Celery, "finalize")
def _finalize_checked(original: Any, /, app: Celery, auto: bool = False) -> Any:
    """Raise the first stored complaint, if there is one."""
    complaints = [*_complaints.get(app, ()), *_shared_complaints]
    if not app.finalized and complaints and uses_affinity_transport(app.conf.broker_transport):
        raise OptionError(complaints[0])
    return original(app, auto)


#: Name of the attribute that marks a task's class as checked.
_SEEN = "_celery_affinity_seen"


def _check_task(task: Any) -> None:
    """Raise OptionError if the class of *task* has a wrong attribute. Otherwise mark the class as checked."""
    attributes = option_attributes(task)
    error = wrong_option_error(attributes, scheduled=False, of_task=True) or acked_too_early(
        attributes, bool(task.acks_late)
    )
    if error is None and (words := unfilled_by_task(task, task.name)):
        raise OptionError(words)
    if error:
        annotated = next(
            (
                where
                for where, options in options_in_annotations(task.app.conf, task.name)
                if wrong_option_error(options, of_task=True)
            ),
            None,
        )
        raise OptionError(f"{annotated or f'task {task.name}'}: {error}")
    setattr(type(task), _SEEN, True)


# -- calls


def check_call_options(app: Celery, name: str, options: Options) -> None:
    """Raise OptionError if an option of a call of task *name*, or of the task's class, has a misspelt name.

    Values are checked later. Known names and a class that was checked before cost next to nothing.
    """
    task = tasks_of(app).get(name)
    if task is not None and _SEEN not in vars(type(task)):
        _check_task(task)
    if not options.keys() <= KNOWN and (error := wrong_name_error(options)):
        raise OptionError(f"{_where(app, name, error)}: {error}")


def _where(app: Celery, name: str, error: str) -> str:
    """Return the place of the option with *error*, as text."""
    for where, route in options_in_routes(app.conf, name):
        if wrong_name_error(route) == error:
            return where
    has_functions = any(not isinstance(route, MapRoute) for route in app.amqp.routes or ())
    return f"call of task {name}{', or what a router of task_routes returns for it' if has_functions else ''}"


def _check(options: Options, app: Callable[[], Celery], where: str) -> None:
    """Raise OptionError if *options* are wrong and the app has this transport. *app* is called only if necessary."""
    if wrong_option_error(options) and uses_affinity_transport(app().conf.broker_transport):
        error = wrong_option_error(options, scheduled=schedules_all(app()))
        if error:
            raise OptionError(f"{where}: {error}")


# ``set``, ``retry`` and ``apply`` bypass the function that sends calls.


@replaces(Signature, "set")
def _set(original: Any, /, signature: Any, immutable: bool | None = None, **options: Any) -> Any:
    if options:
        _check(options, lambda: signature.app, f"signature of task {signature.task}")
    return original(signature, immutable, **options)


@replaces(Task, "retry")
def _retry(original: Any, /, task: Any, *args: Any, **options: Any) -> Any:
    _check(options, lambda: task.app, f"retry of task {task.name}")
    return original(task, *args, **options)


@replaces(Task, "apply")
def _apply(original: Any, /, task: Any, *args: Any, **options: Any) -> Any:
    _check(options, lambda: task.app, f"call of task {task.name}")
    return original(task, *args, **options)


#: Option that sets a literal key -> how to set a template instead.
_TEMPLATES = {"exclusive": "Exclusive({!r})", "tenant": "affinity=Affinity(tenant={!r})"}


class AppComplaint(NamedTuple):
    #: The place, as text.
    where: str
    what: str
    #: True if the name is wrong, False if the value is.
    misspelt: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def app_complaints(app: Celery) -> Iterator[AppComplaint]:
    """Yield complaints about routes, annotations and tasks of the finalized *app*."""
    scheduled = schedules_all(app)
    annotated = list(options_in_annotations(app.conf))
    annotated_names = {name for _, options in annotated for name in options}
    tasks = [
        (
            f"task {name}",
            {name: value for name, value in option_attributes(task).items() if name not in annotated_names},
        )
        for name, task in sorted(app.tasks.items())
        if not name.startswith("celery.")
    ]
    for where, options in options_in_routes(app.conf):
        yield from complaints_in(where, options, scheduled=scheduled, is_route=True)
    for where, options in (*annotated, *tasks):
        yield from complaints_in(where, options, scheduled=scheduled, of_task=True)
    yield from _wrong_keys(app)


def _wrong_keys(app: Celery) -> Iterator[AppComplaint]:
    """Yield complaints about keys, set by a task or by its name, that no call of the task can fill."""
    try:
        settings = settings_of(app)
    except SettingError:  # reported by the next reader of the settings
        settings = Settings()
    tasks = ((name, task) for name, task in sorted(app.tasks.items()) if not name.startswith("celery."))
    for name, task in tasks:
        with suppress(OptionError):  # reported by `complaints_in`
            if error := unfilled_by_task(task, name):
                yield AppComplaint(f"task {name}", error, False)
                continue
            sources = sources_of_task(name, task, settings)
            for option in RULE_OPTIONS:
                source, rule = resolve_source(option, sources)
                if source == "named" and (error := unfilled_rule(rule, name, arguments_of(task))):
                    yield AppComplaint(f"{PREFIX}task_rules", error, False)
            if error := unfilled_rule(as_size(sources.named.size), name, arguments_of(task)):
                yield AppComplaint(f"{PREFIX}task_rules", error, False)
            source, preemptible = resolve_source("preemptible", sources)
            if preemptible and not task.acks_late:
                place = f"{PREFIX}task_rules of task {name}" if source == "named" else f"task {name}"
                yield AppComplaint(place, NEEDS_LATE_ACKS, False)
            source, merge = resolve_source("merge_key", sources)
            if merge and has_own_strategy(task):
                words = (
                    "merge does not work with a Strategy of the task's own that gathers calls, as celery-batches has: "
                    'take its base class away; for the calls as a list write Merge(..., keep="all", split=...)'
                )
                yield AppComplaint(f"task {name}", words, False)
            if error := invalid_merge_functions(merge):
                yield AppComplaint(f"{PREFIX}task_rules" if source == "named" else f"task {name}", error, False)


def complaints_in(
    where: str, options: Options, *, scheduled: bool, of_task: bool = False, is_route: bool = False
) -> Iterator[AppComplaint]:
    """Yield complaints about *options* of a ``beat_schedule`` entry, a task or a route, one per name."""
    for name, value in options.items():
        alone = {name: value, "stamped_headers": options.get("stamped_headers")}
        if error := wrong_name_error(alone):
            yield AppComplaint(where, error, True)
        elif error := (
            wrong_value_error(alone, scheduled=scheduled, of_task=of_task)
            or (None if of_task else wrong_repeated_deadline(alone, is_route=is_route))
        ):
            yield AppComplaint(where, error, False)
        elif not of_task and name in _TEMPLATES and _looks_like_a_template(value):
            words = f"{name}= has the key itself, got: {value!r}; for a template write {_TEMPLATES[name].format(value)}"
            yield AppComplaint(where, words, False)


def _looks_like_a_template(key: object) -> bool:
    """Return True if the configured *key* has template fields, which would give all calls the same literal key."""
    with suppress(OptionError):
        return isinstance(key, str) and any(
            isinstance(part, TemplateField) for part in parse_template("exclusive", key)
        )
    return False


def check_app(app: Celery) -> None:
    """Raise OptionError if a route, annotation or task of the finalized *app* has a wrong option."""
    for complaint in app_complaints(app):
        raise OptionError(str(complaint))
