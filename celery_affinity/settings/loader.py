"""Read and check settings by name, from ``app.conf`` or as typed by a user."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ..errors import SettingError
from ..options import did_you_mean
from ..schema.values import NumberCheck
from .table import PREFIX, Settings

_WORD = PREFIX.removesuffix("_")

Value = float | str

#: Maximum length of a number in a setting. Every float is shorter, and an integer of this length converts to a float.
_MAX_NUMBER_LENGTH = 30

_FIELDS = {setting.name: setting for setting in fields(Settings)}

#: Names of the settings that can be changed at run time.
CHANGEABLE = tuple(name for name, setting in _FIELDS.items() if setting.metadata["at_run_time"])


def accepted_instead(name: str, value: object) -> str | None:
    """Return None if the setting *name* accepts *value*. Otherwise return the accepted values as text."""
    check: NumberCheck = _FIELDS[name].metadata["check"]
    return check(value)


def parse_change(word: str, text: str) -> tuple[str, Value]:
    """Return the name and checked value of a setting that a user wants to change at run time.

    *word*: the name, with or without ``affinity_``. *text*: the value as typed. Raises SettingError for a setting that
    cannot be changed at run time and for an invalid value.
    """
    name = changeable(word)
    value = text if isinstance(_FIELDS[name].default, str) else number_or_text(text)
    accepted = accepted_instead(name, value)
    if accepted:
        raise SettingError(f"{PREFIX}{name} must be {accepted}, got: {text!r}")
    return name, value


def changeable(word: str) -> str:
    """Return the name of the setting *word*, which can begin with ``affinity_``.

    Raises SettingError if no setting of this name can be changed at run time.
    """
    name = word.lower().removeprefix(PREFIX)
    if name in CHANGEABLE:
        return name
    if name in _FIELDS:
        raise SettingError(
            f"{PREFIX}{name} can only be set in app.conf; changeable at run time: {', '.join(CHANGEABLE)}"
        )
    raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")


def load_settings(conf: Mapping[str, object], keys: Iterable[str]) -> Settings:
    """Return the settings in *conf*, an ``app.conf``. *keys*: the keys to read, in any case.

    Raises SettingError for an unknown key that begins with ``affinity_``.
    """
    given: dict[str, Any] = {}
    for key in keys:
        _, prefix, name = key.lower().rpartition(PREFIX)
        if not prefix:
            _check_prefix(key)
            continue
        if name not in _FIELDS:
            raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")
        given[name] = conf[key]
    return Settings(**given)


def _check_prefix(key: str) -> None:
    """Raise SettingError if *key* is a misspelt ``affinity_`` and a name close to one of our settings."""
    words = key.lower().replace("-", "_").split("_")
    for i, word in enumerate(words):
        glued = word.startswith(_WORD) and word != _WORD  # affinityqueues
        if glued or word == _WORD or did_you_mean.closest_match(word, (_WORD,)):
            name = "_".join([*([word.removeprefix(_WORD)] if glued else ()), *words[i + 1 :]])
            close = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.8)
            if close:
                raise SettingError(f"unknown setting {key!r}; did you mean {PREFIX + close[0]!r}?")


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, _FIELDS, n=1)
    return f"; did you mean {PREFIX + close[0]!r}?" if close else ""


def number_or_text(text: str) -> Value:
    """Return *text* as a number, or unchanged if it is not a number or is too long for a setting."""
    if len(text) > _MAX_NUMBER_LENGTH:
        return text
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
