"""The settings in force: read, changed at run time and reset, and logged by each worker."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from ..errors import SettingError
from ..rules.settings import (
    CHANGEABLE,
    NAME_IN_REDIS,
    PREFIX,
    Settings,
    Value,
    changeable,
    from_redis,
    is_setting,
    parse_change,
    to_redis,
)
from .scheduler import Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RuntimeSetting:
    """A setting that can be changed at run time.

    *value*: the one in force. *conf*: that of the app.conf of the fleet that said one last. *own*: that of this app.
    """

    name: str
    value: Value
    conf: Value
    own: Value

    @property
    def changed_at_run_time(self) -> bool:
        return self.value != self.conf

    @property
    def disputed(self) -> bool:
        """Whether this app's own value is not the one that the fleet goes back to."""
        return self.conf != self.own


def read(scheduler: Scheduler, own: Settings) -> list[RuntimeSetting]:
    """Return every setting that can be changed at run time, as it is now."""
    in_force, conf = scheduler.reader.settings()
    defaults = Settings().shared()
    return [
        RuntimeSetting(
            name,
            _value(name, in_force, defaults),
            _value(name, conf, own.shared()),
            _value(name, {}, own.shared()),
        )
        for name in CHANGEABLE
    ]


def _value(name: str, found: Mapping[str, str], otherwise: Mapping[str, str]) -> Value:
    key = NAME_IN_REDIS[name]
    text = found.get(key)
    if text is not None and not is_setting(name, text):
        _warn_of_no_value(name, text)
        text = None
    return from_redis(name, otherwise[key] if text is None else text)


@cache
def _warn_of_no_value(name: str, text: str) -> None:
    logger.warning("The setting %s in Redis is none that it can be, and counts for nothing: %r", PREFIX + name, text)


def change(scheduler: Scheduler, own: Settings, typed: Mapping[str, str]) -> list[RuntimeSetting]:
    """Put the values of *typed* (setting -> value, as somebody wrote them) in force. Return these settings as they are.

    Raises SettingError, and changes nothing, if one cannot be changed, or not to its value.
    """
    changes = dict(parse_change(word, text) for word, text in typed.items())
    in_force = {each.name: each.value for each in read(scheduler, own)}
    _check_together(own, {**in_force, **changes})
    scheduler.configure({NAME_IN_REDIS[name]: to_redis(name, value) for name, value in changes.items()})
    return [each for each in read(scheduler, own) if each.name in changes]


def reset(scheduler: Scheduler, own: Settings, words: Iterable[str]) -> list[RuntimeSetting]:
    """Have settings go back to what app.conf says; all of them if there are no *words*. Return them as they are.

    Raises SettingError, and changes nothing, if one cannot be changed at run time.
    """
    names = [changeable(word) for word in words] or list(CHANGEABLE)
    scheduler.configure({NAME_IN_REDIS[name]: "" for name in names})
    return [each for each in read(scheduler, own) if each.name in names]


def _check_together(own: Settings, values: Mapping[str, Value]) -> None:
    timeout_s, interval_s = values["worker_timeout"], own.heartbeat_interval
    if isinstance(timeout_s, str) or timeout_s < interval_s * 2:
        raise SettingError(
            f"{PREFIX}worker_timeout must be at least twice {PREFIX}heartbeat_interval ({interval_s} s), "
            f"or one late beat looks like death, got: {timeout_s!r}"
        )


class SettingsLog:
    """Logs, in a worker, which of its app's settings are not those in force, and each change."""

    def __init__(self, own: Settings) -> None:
        self._own = own
        self._revision = 0
        self._known: dict[str, RuntimeSetting] = {
            name: RuntimeSetting(name, value, value, value)
            for name in CHANGEABLE
            for value in [_value(name, {}, own.shared())]
        }

    def update(self, scheduler: Scheduler, revision: int) -> None:
        """Read the settings if *revision* is a new one, and log each that has changed."""
        if revision == self._revision:
            return
        for each in read(scheduler, self._own):
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
                "%s is %r in the app.conf of another app (or of another version of this one) and %r in ours: "
                "all workers share one value, the one that changed last",
                name,
                now.conf,
                now.own,
            )
        if now.value != before.value:
            why = "changed at run time" if now.changed_at_run_time else "as app.conf has it"
            logger.info("%s is now %r (%s), it was %r", name, now.value, why, before.value)
