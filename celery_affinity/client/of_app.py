"""What an app says: whether it uses this transport, its settings and tasks, and what is said of tasks by name."""

import fnmatch
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.task import Task

from ..rules.affinity import NOTHING, Affinity, affinity_of
from ..rules.merging import Merge

if TYPE_CHECKING:
    from ..rules.settings import Settings

#: First part of a ``broker_transport`` that selects this transport.
_PACKAGE = __name__.partition(".")[0]

_T = TypeVar("_T")

_SETTINGS: "WeakKeyDictionary[Celery, Settings]" = WeakKeyDictionary()


def is_ours(broker_transport: object) -> bool:
    """Return whether a value of ``app.conf.broker_transport`` selects this transport."""
    module = broker_transport if isinstance(broker_transport, str) else getattr(broker_transport, "__module__", "")
    return module.partition(":")[0].partition(".")[0] == _PACKAGE


def settings_of(app: Celery) -> "Settings":
    """Return the settings of *app*, read once. Raises SettingError."""
    settings = _SETTINGS.get(app)
    if settings is None:
        from ..rules.settings_by_name import load  # not at the top: a process that only imports tasks needs no setting

        settings = _SETTINGS[app] = load(app.conf, app.conf.keys())
    return settings


def tasks_of(app: Celery) -> Mapping[str, Task]:
    """Return the tasks of *app*; only those so far, if a publish is not to finalize the app."""
    tasks: Mapping[str, Task] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks


def type_by_name(name: str, settings: "Settings") -> str | None:
    """Return the type that ``affinity_task_types`` has for the task *name*."""
    return _match(name, tuple(settings.task_types.items())) if settings.task_types else None


def rules_by_name(name: str, settings: "Settings") -> Affinity:
    """Return the rules that ``affinity_task_rules`` has for the task *name*."""
    return (_match(name, tuple(settings.task_rules.items())) if settings.task_rules else None) or NOTHING


def merge_of(task: Task) -> Merge | None:
    """Return how calls of *task* merge: as the task says, or else as its name does; None if they do not."""
    return affinity_of(task).merge or rules_by_name(task.name, settings_of(task.app)).merge


def has_own_strategy(task: Task) -> bool:
    """Return whether *task* has another strategy than Celery's default: it may gather calls, as celery-batches does."""
    return bool(task.Strategy != Task.Strategy)


def gathers(task: Task) -> int:
    """Return the number of calls that the strategy of *task* gathers for a run, as celery-batches names it; 0: none."""
    number = getattr(task, "flush_every", 0) if has_own_strategy(task) else 0
    return number if isinstance(number, int) else 0


@lru_cache(maxsize=4096)
def _match(name: str, patterns: tuple[tuple[str, _T], ...]) -> _T | None:
    return next((found for pattern, found in patterns if fnmatch.fnmatchcase(name, pattern)), None)
