"""The settings in force: read, changed at run time and reset, and logged by each worker.

Quotas of tenants at run time: entries of the setting ``tenants``, which has all of them as one text.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TypeVar, cast

from ..clock import SECOND_US
from ..errors import SettingError
from ..log_limit import UNLIMITED, limited_logger
from ..schema import constants
from ..schema.constants import LONGEST_NUMBER, SETTING_RESET
from ..settings import tenants
from ..settings.limits import NONE_AT_RUN_TIME
from ..settings.loader import CHANGEABLE, Value, changeable, parse_change
from ..settings.table import PREFIX, Settings
from ..settings.tenants import Tenant
from ..settings.wire import NAME_IN_REDIS, from_redis, is_setting, shared_settings, to_redis
from .cohorts import CohortRow
from .scheduler import Scheduler

logger = limited_logger(__name__)

V = TypeVar("V")


@dataclass(frozen=True)
class RuntimeSetting(CohortRow):
    """A setting that can be changed at run time.

    *value*: the value in force. *conf*: the value in the app.conf that changed last in the fleet, to which a reset goes
    back. *own*: the value in this app's app.conf. *damaged_s*: time at which a repair found the value in Redis deleted
    or invalid, and put that of app.conf in force; None if nobody has to know.
    """

    name: str
    value: Value
    conf: Value
    own: Value
    damaged_s: float | None = None

    @property
    def changed_at_run_time(self) -> bool:
        return self.value != self.conf

    @property
    def disputed(self) -> bool:
        """Whether a reset would go back to another value than this app's own."""
        return self.conf != self.own


def read_settings(scheduler: Scheduler, own: Settings) -> list[RuntimeSetting]:
    """Return every setting that can be changed at run time, as it is now."""
    in_force, conf = scheduler.reader.settings()
    defaults = shared_settings(Settings())
    return [
        RuntimeSetting(
            name,
            _value(name, in_force, defaults, own),
            _value(name, conf, shared_settings(own), own),
            _value(name, {}, shared_settings(own), own),
            _damaged_s(in_force.get(f"{SETTING_RESET}{NAME_IN_REDIS[name]}")),
        )
        for name in CHANGEABLE
    ]


def _damaged_s(time: str | None) -> float | None:
    is_time = time is not None and time.isdecimal() and len(time) <= LONGEST_NUMBER
    return int(str(time)) / SECOND_US if is_time else None


def _value(name: str, found: Mapping[str, str], otherwise: Mapping[str, str], own: Settings) -> Value:
    """Return the value of a setting in *found*, else that in *otherwise*, as the app with *own* would say it."""
    key = NAME_IN_REDIS[name]
    text = found.get(key)
    if text is not None and not is_setting(name, text):
        _warn_of_no_value(name, text)
        text = None
    return from_redis(name, otherwise[key] if text is None else text, own.priority_order)


@cache
def _warn_of_no_value(name: str, text: str) -> None:
    logger.warning("The setting %s in Redis is invalid and has no effect: %r", PREFIX + name, text)


def change_settings(scheduler: Scheduler, own: Settings, typed: Mapping[str, str]) -> list[RuntimeSetting]:
    """Put *typed* (setting -> value, both as a person wrote them) in force. Return these settings as they then are.

    Raises SettingError, and changes nothing, if a setting cannot be changed, or does not accept its value.
    """
    changes = dict(parse_change(word, text) for word, text in typed.items())
    in_force = {each.name: each.value for each in read_settings(scheduler, own)}
    _check_together(own, {**in_force, **changes})
    order = own.priority_order
    scheduler.configure(
        {NAME_IN_REDIS[name]: to_redis(name, value, order) or NONE_AT_RUN_TIME for name, value in changes.items()}
    )
    return [each for each in read_settings(scheduler, own) if each.name in changes]


def reset_settings(scheduler: Scheduler, own: Settings, words: Iterable[str]) -> list[RuntimeSetting]:
    """Put app.conf's values in force again, for the settings that *words* name, or for all. Return the new state.

    Raises SettingError, and changes nothing, if a setting cannot be changed at run time.
    """
    names = [changeable(word) for word in words] or list(CHANGEABLE)
    scheduler.configure({NAME_IN_REDIS[name]: "" for name in names})
    return [each for each in read_settings(scheduler, own) if each.name in names]


def reset_entry(
    scheduler: Scheduler,
    own: Settings,
    name: str,
    entry: str,
    *,
    found: Mapping[str, V],
    conf: Mapping[str, V],
    shown: Callable[[Mapping[str, V]], str],
) -> None:
    """Put app.conf's value of one *entry* of the setting *name*, a mapping, in force again.

    *found*, *conf*: the mapping in force, and that of app.conf. *shown*: a mapping as a person would type it.
    """
    left = {each: value for each, value in found.items() if each != entry}
    if entry in conf:
        left[entry] = conf[entry]
    if left == conf:
        reset_settings(scheduler, own, [name])
    else:
        change_settings(scheduler, own, {name: shown(left)})


def _check_together(own: Settings, values: Mapping[str, Value]) -> None:
    timeout_s, interval_s = values["worker_timeout"], own.heartbeat_interval
    if isinstance(timeout_s, str) or constants.is_timeout_too_short(timeout_s, interval_s):
        raise SettingError(
            f"{PREFIX}worker_timeout must be at least twice {PREFIX}heartbeat_interval ({interval_s} s), "
            f"or one late heartbeat would look like a death, got: {timeout_s!r}"
        )


class SettingsLog:
    """Logs, in a worker, the settings in force that differ from those of the worker's app, and each change."""

    def __init__(self, own: Settings) -> None:
        self._own = own
        self._revision = 0
        self._known: dict[str, RuntimeSetting] = {
            name: RuntimeSetting(name, value, value, value)
            for name in CHANGEABLE
            for value in [_value(name, {}, shared_settings(own), own)]
        }

    def update(self, scheduler: Scheduler, revision: int) -> None:
        """Read the settings if *revision* is new, and log each setting that has changed."""
        if revision == self._revision:
            return
        for each in read_settings(scheduler, self._own):
            before, self._known[each.name] = self._known[each.name], each
            self._log(before, each)
        self._revision = revision

    @property
    def worker_timeout_s(self) -> float:
        """The worker timeout in force, s, as `update` read it last."""
        return cast("float", self._known["worker_timeout"].value)

    def _log(self, before: RuntimeSetting, now: RuntimeSetting) -> None:
        name = PREFIX + now.name
        if now.disputed and now.conf != before.conf:
            logger.warning(
                "%s is %r in the app.conf of another app (or of another version of this app) and %r in ours. All "
                "workers share one value: the one that was changed last",
                name,
                now.conf,
                now.own,
            )
        if now.value != before.value:
            why = "changed at run time" if now.changed_at_run_time else "as app.conf has it"
            logger.info("%s is now %r (%s); it was %r", name, now.value, why, before.value, extra=UNLIMITED)


_TENANTS = "tenants"

Quotas = Mapping[str, Tenant]


def read_quotas(scheduler: Scheduler, own: Settings) -> tuple[Quotas, Quotas]:
    """Return the quotas in force by tenant, and those of the app.conf that a reset goes back to."""
    (found,) = (each for each in read_settings(scheduler, own) if each.name == _TENANTS)
    return tenants.typed_tenants(str(found.value)) or {}, tenants.typed_tenants(str(found.conf)) or {}


def change_quota(scheduler: Scheduler, own: Settings, name: str, fields: Mapping[str, int | None]) -> Quotas:
    """Change *fields* of the quota of the tenant *name*, or of ``*``. Return the quotas in force then.

    Fields that are not given stay as they are. Raises OptionError for values that no quota has, SettingError for a
    name that no tenant has.
    """
    found, _ = read_quotas(scheduler, own)
    quota = tenants.as_tenant({**asdict(found.get(name, Tenant())), **fields})
    change_settings(scheduler, own, {_TENANTS: tenants.shown_tenants({**found, name: quota})})
    return read_quotas(scheduler, own)[0]


def reset_quota(scheduler: Scheduler, own: Settings, name: str) -> bool:
    """Put app.conf's quota of *name* in force again, or that of ``*``. Return whether there was a quota of *name*."""
    found, conf = read_quotas(scheduler, own)
    if name not in found.keys() | conf.keys():
        return False
    reset_entry(scheduler, own, _TENANTS, name, found=found, conf=conf, shown=tenants.shown_tenants)
    return True
