"""The settings in force: read, change and reset them at run time, and log them in workers.

Quotas of tenants are entries of the setting ``tenants``, which contains all of them as one string.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TypeVar, cast

from ..clock import SECOND_US
from ..errors import SettingError
from ..log_limit import UNLIMITED, limited_logger
from ..schema import constants
from ..schema.constants import MAX_NUMBER_LENGTH, SETTING_RESET
from ..settings import tenants
from ..settings.limits import NONE_AT_RUN_TIME
from ..settings.loader import CHANGEABLE, Value, changeable, parse_change
from ..settings.table import PREFIX, Settings
from ..settings.tenants import Tenant
from ..settings.wire import DEFAULTS, NAME_IN_REDIS, from_redis, is_setting, shared_settings, to_redis
from .cohorts import CohortRow
from .scheduler import Scheduler

logger = limited_logger(__name__)

V = TypeVar("V")


@dataclass(frozen=True)
class RuntimeSetting(CohortRow):
    """A setting that can be changed at run time."""

    name: str
    value: Value  #: the value in force
    conf: Value  #: the value in the app.conf that changed last in the fleet, which a reset restores
    own: Value  #: the value in this app's app.conf
    #: Time at which a repair found the value in Redis deleted or invalid, and restored app.conf's value.
    damaged_s: float | None = None

    @property
    def changed_at_run_time(self) -> bool:
        return self.value != self.conf

    @property
    def default(self) -> Value:
        """The value without any setting."""
        return from_redis(self.name, DEFAULTS[NAME_IN_REDIS[self.name]])

    @property
    def disputed(self) -> bool:
        """True if a reset would restore another value than this app's."""
        return self.conf != self.own


def read_settings(scheduler: Scheduler, own: Settings) -> list[RuntimeSetting]:
    """Return every setting that can be changed at run time, with its current values."""
    in_force, conf = scheduler.reader.settings()
    defaults = shared_settings(Settings())
    return [
        RuntimeSetting(
            name,
            _value(name, in_force, defaults, own),
            _value(name, conf, shared_settings(own), own),
            _value(name, {}, shared_settings(own), own),
            _parse_damaged_s(in_force.get(f"{SETTING_RESET}{NAME_IN_REDIS[name]}")),
        )
        for name in CHANGEABLE
    ]


def _parse_damaged_s(time: str | None) -> float | None:
    is_time = time is not None and time.isdecimal() and len(time) <= MAX_NUMBER_LENGTH
    return int(str(time)) / SECOND_US if is_time else None


def _value(name: str, values: Mapping[str, str], defaults: Mapping[str, str], app_settings: Settings) -> Value:
    """Return the value of a setting from *values*, or from *defaults*, in the notation of the app."""
    key = NAME_IN_REDIS[name]
    text = values.get(key)
    if text is not None and not is_setting(name, text):
        _warn_invalid_value(name, text)
        text = None
    return from_redis(name, defaults[key] if text is None else text, app_settings.priority_order)


@cache
def _warn_invalid_value(name: str, text: str) -> None:
    logger.warning("The setting %s in Redis is invalid and has no effect: %r", PREFIX + name, text)


def change_settings(scheduler: Scheduler, own: Settings, typed: Mapping[str, str]) -> list[RuntimeSetting]:
    """Put *typed* (setting -> value, as a user typed them) in force. Return these settings.

    Raises SettingError, without any change, if a setting cannot be changed or does not accept its value.
    """
    changes = dict(parse_change(word, text) for word, text in typed.items())
    in_force = {setting.name: setting.value for setting in read_settings(scheduler, own)}
    timeout_s, interval_s = {**in_force, **changes}["worker_timeout"], own.heartbeat_interval
    if isinstance(timeout_s, str) or constants.is_timeout_too_short(timeout_s, interval_s):
        raise SettingError(
            f"{PREFIX}worker_timeout must be at least twice {PREFIX}heartbeat_interval ({interval_s} s), "
            f"or one late heartbeat would look like a death, got: {timeout_s!r}"
        )
    encoded = {name: to_redis(name, value, own.priority_order) for name, value in changes.items()}
    scheduler.configure({NAME_IN_REDIS[name]: text or NONE_AT_RUN_TIME for name, text in encoded.items()})
    return [setting for setting in read_settings(scheduler, own) if setting.name in changes]


def reset_settings(scheduler: Scheduler, own: Settings, words: Iterable[str]) -> list[RuntimeSetting]:
    """Restore app.conf's values of the named settings, or of all settings. Return these settings.

    Raises SettingError, without any change, if a setting cannot be changed at run time.
    """
    names = [changeable(word) for word in words] or list(CHANGEABLE)
    scheduler.configure({NAME_IN_REDIS[name]: "" for name in names})
    return [setting for setting in read_settings(scheduler, own) if setting.name in names]


def reset_entry(
    scheduler: Scheduler,
    own: Settings,
    name: str,
    entry: str,
    *,
    in_force: Mapping[str, V],
    conf: Mapping[str, V],
    shown: Callable[[Mapping[str, V]], str],
) -> None:
    """Reset one *entry* of the mapping in the setting *name* to app.conf's value.

    *in_force*, *conf*: the mappings in force and in app.conf. *shown*: formats a mapping as a user would type it.
    """
    entries = {key: value for key, value in in_force.items() if key != entry}
    if entry in conf:
        entries[entry] = conf[entry]
    if entries == conf:
        reset_settings(scheduler, own, [name])
    else:
        change_settings(scheduler, own, {name: shown(entries)})


class SettingsLog:
    """Logs, in a worker, each change of the settings in force, and differences from the worker's app."""

    def __init__(self, own: Settings) -> None:
        self._app_settings = own
        self._revision = 0
        self._in_force: dict[str, RuntimeSetting] = {
            name: RuntimeSetting(name, value, value, value)
            for name in CHANGEABLE
            for value in [_value(name, {}, shared_settings(own), own)]
        }

    def update(self, scheduler: Scheduler, revision: int) -> None:
        """Read the settings if *revision* is new, and log each changed setting."""
        if revision == self._revision:
            return
        for setting in read_settings(scheduler, self._app_settings):
            name, before = PREFIX + setting.name, self._in_force[setting.name]
            self._in_force[setting.name] = setting
            if setting.disputed and setting.conf != before.conf:
                logger.warning(
                    "%s is %r in the app.conf of another app (or of another version of this app) and %r in ours. All "
                    "workers share one value: the one that was changed last",
                    name,
                    setting.conf,
                    setting.own,
                )
            if setting.value != before.value:
                why = "changed at run time" if setting.changed_at_run_time else "as app.conf has it"
                logger.info("%s is now %r (%s); it was %r", name, setting.value, why, before.value, extra=UNLIMITED)
        self._revision = revision

    @property
    def worker_timeout_s(self) -> float:
        """The worker timeout in force, in seconds, as of the last `update`."""
        return cast("float", self._in_force["worker_timeout"].value)


_TENANTS = "tenants"

Quotas = Mapping[str, Tenant]


def read_quotas(scheduler: Scheduler, own: Settings) -> tuple[Quotas, Quotas]:
    """Return the quotas by tenant: in force, and in the app.conf that a reset restores."""
    (setting,) = (setting for setting in read_settings(scheduler, own) if setting.name == _TENANTS)
    return tenants.typed_tenants(str(setting.value)) or {}, tenants.typed_tenants(str(setting.conf)) or {}


def change_quota(scheduler: Scheduler, own: Settings, name: str, fields: Mapping[str, int | None]) -> Quotas:
    """Change *fields* of tenant *name*'s quota (or ``*``'s). Return the quotas in force.

    Other fields stay unchanged. Raises OptionError for invalid values, SettingError for an invalid tenant name.
    """
    quotas, _ = read_quotas(scheduler, own)
    quota = tenants.as_tenant({**asdict(quotas.get(name, Tenant())), **fields})
    change_settings(scheduler, own, {_TENANTS: tenants.shown_tenants({**quotas, name: quota})})
    return read_quotas(scheduler, own)[0]


def reset_quota(scheduler: Scheduler, own: Settings, name: str) -> bool:
    """Restore app.conf's quota of *name*, or of ``*``. Return True if there was a quota of *name*."""
    quotas, conf = read_quotas(scheduler, own)
    if name not in quotas.keys() | conf.keys():
        return False
    reset_entry(scheduler, own, _TENANTS, name, in_force=quotas, conf=conf, shown=tenants.shown_tenants)
    return True
