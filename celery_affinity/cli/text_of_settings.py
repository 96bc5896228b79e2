"""The output of ``celery affinity settings`` for people."""

from collections.abc import Sequence

from ..rules.settings import PREFIX, Settings
from ..rules.settings_by_name import Value
from ..rules.shared_settings import NAME_IN_REDIS, from_redis, shared
from ..server.runtime_settings import RuntimeSetting
from .words import by_cohort


def settings(found: Sequence[RuntimeSetting]) -> str:
    """Return settings as a table; the last column says why a value differs from this app's app.conf."""
    return by_cohort(
        found,
        ("setting", "in force", "app.conf", "default", ""),
        [
            (PREFIX + each.name, str(each.value), str(each.own), str(_default(each.name)), _setting_note(each))
            for each in found
        ],
        red=[each.disputed for each in found],
    )


def _default(name: str) -> Value:
    return from_redis(name, shared(Settings())[NAME_IN_REDIS[name]])


def _setting_note(each: RuntimeSetting) -> str:
    notes = []
    if each.changed_at_run_time:
        notes.append(f"changed at run time; a reset restores {each.conf}")
    if each.disputed:
        notes.append(f"the app.conf of the workers that joined last has {each.conf}")
    if each.damaged_s is not None:
        notes.append("was deleted or overwritten in Redis, and reset by a repair")
    return "; ".join(notes)
