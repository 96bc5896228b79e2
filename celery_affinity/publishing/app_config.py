"""Configuration of an app: whether it uses this transport, its settings and tasks, and options of tasks by name.

Also here: `replaces`, by which this package replaces methods of Celery and kombu. Each replacement first checks the
app's transport.
"""

import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.task import Task
from celery.utils.imports import symbol_by_name

from ..errors import OptionError, refuse
from ..options.affinity import NOTHING, Affinity, affinity_of
from ..options.call_options import Sources, resolve
from ..options.merge import Merge

if TYPE_CHECKING:
    from ..settings.table import Settings

#: First part of the ``broker_transport`` that selects this transport.
_PACKAGE = __name__.partition(".")[0]
#: The value of ``broker_transport`` that selects this transport.
TRANSPORT = f"{_PACKAGE}:Transport"
#: A URL with this prefix selects this transport as well: ``affinity+redis://``, ``affinity+sentinel://``.
URL_PREFIX = "affinity+"
_T = TypeVar("_T")
_SETTINGS: "WeakKeyDictionary[Celery, Settings]" = WeakKeyDictionary()


def replaces(owner: Any, name: str) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Decorate the function that replaces a method or function of *owner*; it gets the original as first argument.

    If this version of *owner* has no such method, nothing is replaced.
    """

    def decorate(function: Callable[..., _T]) -> Callable[..., _T]:
        original = getattr(owner, name, None)
        if original is None:
            return function

        @wraps(original)
        def replacement(*args: Any, **options: Any) -> _T:
            return function(original, *args, **options)

        replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # inspect reads it
        del replacement.__wrapped__  # otherwise ``task_annotations`` would restore the original
        setattr(owner, name, replacement)
        return function

    return decorate


def uses_affinity_transport(broker_transport: object) -> bool:
    """Return True if *broker_transport*, a value of ``app.conf``, selects this transport."""
    module = broker_transport if isinstance(broker_transport, str) else getattr(broker_transport, "__module__", "")
    return module.partition(":")[0].partition(".")[0] in (_PACKAGE, URL_PREFIX.rstrip("+"))


def without_prefix(url: Any) -> Any:
    """Return *url*, which can be several URLs with ";", a list or a tuple of URLs, without `URL_PREFIX`."""
    if isinstance(url, str):
        return ";".join(part.removeprefix(URL_PREFIX) for part in url.split(";"))
    return type(url)(without_prefix(part) for part in url) if isinstance(url, (list, tuple)) else url


def select_transport_by_url(app: Celery) -> None:
    """Set ``broker_transport`` of a configured app if one of its broker URLs begins with `URL_PREFIX`."""
    urls = (app.conf.broker_read_url, app.conf.broker_write_url)
    if any(without_prefix(url) != url for url in urls):
        app.conf.broker_transport = TRANSPORT


def settings_of(app: Celery) -> "Settings":
    """Return the settings of *app*, read once. Raises SettingError."""
    settings = _SETTINGS.get(app)
    if settings is None:
        from ..settings.loader import load_settings  # imported here: a process that only imports tasks does not need it

        settings = _SETTINGS[app] = load_settings(app.conf, app.conf.keys())
    return settings


def tasks_of(app: Celery) -> Mapping[str, Task]:
    """Return the tasks of *app*: only the existing ones if a publish must not finalize the app."""
    tasks: Mapping[str, Task] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks


def type_by_name(name: str, settings: "Settings") -> str | None:
    """Return the type that ``affinity_task_types`` sets for the task *name*."""
    return _match(name, tuple(settings.task_types.items())) if settings.task_types else None


def rules_by_name(name: str, settings: "Settings") -> Affinity:
    """Return the rules that ``affinity_task_rules`` sets for the task *name*."""
    return (_match(name, tuple(settings.task_rules.items())) if settings.task_rules else None) or NOTHING


def sources_of_task(name: str, task: object, settings: "Settings") -> Sources:
    """Return the sources that set options for all calls of *task* (None: the app lacks it). Raises OptionError."""
    named, type_ = rules_by_name(name, settings), type_by_name(name, settings)
    return Sources(task_affinity=affinity_of(task), named=replace(named, type=type_) if type_ else named)


def merge_of(task: Task) -> Merge | None:
    """Return how calls of *task* merge, set by the task or by its name, or None."""
    named = rules_by_name(task.name, settings_of(task.app))
    merge: Merge | None = resolve("merge_key", Sources(task_affinity=affinity_of(task), named=named))
    return merge


def has_own_strategy(task: Task) -> bool:
    """Return True if *task* has a custom strategy, which can gather calls like celery-batches."""
    return bool(task.Strategy != Task.Strategy)


def gathers_messages(task: Task) -> int:
    """Return the number of calls per batch of *task* (``flush_every`` of celery-batches), or 0 if it gathers none."""
    number = getattr(task, "flush_every", 0) if has_own_strategy(task) else 0
    return number if isinstance(number, int) else 0


@lru_cache(maxsize=4096)
def _match(name: str, patterns: tuple[tuple[str, _T], ...]) -> _T | None:
    return next((value for pattern, value in patterns if fnmatch.fnmatchcase(name, pattern)), None)


def import_merge_functions(merge: Merge) -> Merge:
    """Return *merge* with dotted names replaced by the imported functions. Raises OptionError for an invalid name."""
    functions: dict[str, Any] = {name: _function(name, value) for name, value in merge.functions}
    return replace(merge, **functions)


def invalid_merge_functions(merge: Merge | None) -> str | None:
    """Return the error in the functions of *merge*, or None."""
    try:
        _ = merge and import_merge_functions(merge)
    except OptionError as exc:
        return str(exc)
    return None


def _function(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        function = symbol_by_name(value)
    except Exception as exc:  # any error: the module is user code
        refusal = refuse(f"{name} of merge", "the dotted name of a function", value)
        raise OptionError(f"{refusal} ({type(exc).__name__}: {exc})") from exc
    if not callable(function):
        raise refuse(f"{name} of merge", "the dotted name of a function", value)
    return function
