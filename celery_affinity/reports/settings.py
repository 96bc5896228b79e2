"""Report the scheduling settings in force."""

from ..scheduler.runtime_settings import RuntimeSetting, read_settings
from ..settings.table import PREFIX
from .render import Table
from .report import Answer, Source, report


def _note(setting: RuntimeSetting) -> str:
    notes = []
    if setting.changed_at_run_time:
        notes.append(f"changed at run time; a reset restores {setting.conf}")
    if setting.disputed:
        notes.append(f"the app.conf of the workers that joined last has {setting.conf}")
    if setting.damaged_s is not None:
        notes.append("was deleted or overwritten in Redis, and reset by a repair")
    return "; ".join(notes)


#: The last column explains why a value differs from this app's app.conf.
SETTINGS = Table[RuntimeSetting](
    {
        "setting": lambda setting: PREFIX + setting.name,
        "in force": lambda setting: str(setting.value),
        "app.conf": lambda setting: str(setting.own),
        "default": lambda setting: str(setting.default),
        "": _note,
    },
    is_red=lambda setting: setting.disputed,
)


@report("settings", "/api/settings", "Settings that can be changed at run time", text=SETTINGS.text)
def settings(source: Source) -> Answer[list[RuntimeSetting]]:
    """Show the scheduling settings in force."""
    return source.rows(lambda scheduler: read_settings(scheduler, source.settings))
