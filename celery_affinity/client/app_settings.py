"""What an app has to say of its tasks: its settings, their tasks, and types by the names of tasks."""

import fnmatch
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery

from ..rules import settings as settings_module
from ..rules.settings import Settings

_SETTINGS: "WeakKeyDictionary[Celery, Settings]" = WeakKeyDictionary()


def settings_of(app: Celery) -> Settings:
    """Return the settings of *app*, read once. Raises SettingError."""
    settings = _SETTINGS.get(app)
    if settings is None:
        settings = _SETTINGS[app] = settings_module.load(app.conf, app.conf.keys())
    return settings


def registered(app: Celery) -> Mapping[str, Any]:
    """Return the tasks of *app*; those that it has so far, if it is not to be finalized by a publish."""
    tasks: Mapping[str, Any] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks


def type_by_name(name: str, settings: Settings) -> str | None:
    """Return the type that ``affinity_task_types`` has for the task *name*."""
    return _match(name, tuple(settings.task_types.items())) if settings.task_types else None


@lru_cache(maxsize=4096)
def _match(name: str, patterns: tuple[tuple[str, str], ...]) -> str | None:
    return next((type_ for pattern, type_ in patterns if fnmatch.fnmatchcase(name, pattern)), None)
