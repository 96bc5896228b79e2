"""Settings by name, as an ``app.conf`` has them, or somebody types them: read, checked, misspelt, or not changeable."""

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

#: Characters of the longest number in a setting: every float is shorter, and a float can be made of such an integer.
_LONGEST_NUMBER = 30

_FIELDS = {each.name: each for each in fields(Settings)}

#: Names of the settings that can be changed at run time.
CHANGEABLE = tuple(name for name, each in _FIELDS.items() if each.metadata["at_run_time"])


def accepted_instead(name: str, value: object) -> str | None:
    """Return None if the setting *name* accepts *value*; else what is accepted, in words."""
    check: NumberCheck = _FIELDS[name].metadata["check"]
    return check(value)


def parse_change(word: str, text: str) -> tuple[str, Value]:
    """Return name and value, checked, of a setting that somebody wants to change at run time, as they typed it.

    *word* may begin with ``affinity_``. Raises SettingError for a setting that cannot be changed at run time, and for a
    value that it does not accept.
    """
    name = changeable(word)
    value = text if isinstance(_FIELDS[name].default, str) else number_or_text(text)
    accepted = accepted_instead(name, value)
    if accepted:
        raise SettingError(f"{PREFIX}{name} must be {accepted}, got: {text!r}")
    return name, value


def changeable(word: str) -> str:
    """Return the name of the setting *word*, which may begin with ``affinity_``.

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


def load_settings(conf: Mapping[str, object], known: Iterable[str]) -> Settings:
    """Return the settings in *conf*, an ``app.conf``; *known* are the keys to look at, in any case.

    Raises SettingError for a key that begins with ``affinity_`` and is no setting of ours.
    """
    given: dict[str, Any] = {}
    for key in known:
        _, prefix, name = key.lower().rpartition(PREFIX)
        if not prefix:
            _check_prefix(key)
            continue
        if name not in _FIELDS:
            raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")
        given[name] = conf[key]
    return Settings(**given)


def _check_prefix(key: str) -> None:
    """Raise SettingError if *key* is close to a setting of ours, and ``affinity_`` itself is misspelt in it."""
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
    """Return the number that *text* is; *text* if it is none, or too long for one that a setting accepts."""
    if len(text) > _LONGEST_NUMBER:
        return text
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
