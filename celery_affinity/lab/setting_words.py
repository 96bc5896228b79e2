"""The words ``set NAME=VALUE``: a setting by its name in an app.conf, or one entry of a setting that has several."""

from collections.abc import Callable, Iterable, Mapping

from ..errors import OptionError, SettingError
from ..rules import tenants
from ..rules.keyed import key_limits
from ..rules.settings_by_name import parse_change
from ..rules.shared_settings import NAME_IN_REDIS, complete, to_redis

#: Setting of several entries -> how its text is read, and how it is written into Redis.
_ENTRIES: Mapping[str, tuple[Callable[[str], object], Callable[..., str]]] = {
    "limits": (key_limits.typed, key_limits.encoded),
    "tenants": (tenants.typed, tenants.encoded),
}

#: What removes an entry.
_NONE = "none"


def read(before: Mapping[str, str], words: Iterable[str]) -> dict[str, str]:
    """Return the settings that *words* say, by their name in Redis. *before*: those in force. Raises OptionError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        setting, dot, _ = name.removeprefix("affinity_").partition(".")
        if not equals:
            raise OptionError(f"set must be NAME=VALUE, such as age_weight=32 or limits.type:pdf=5, got: {word!r}")
        if dot and setting in _ENTRIES:
            in_force = {**complete(before), **found}[setting]
            found[setting] = _with_entry(setting, in_force, word.partition(".")[2])
        else:
            found |= _setting(name, value)
    return found


def _setting(name: str, value: str) -> dict[str, str]:
    try:
        found, parsed = parse_change(name, value)
    except SettingError as exc:
        raise OptionError(f"set: {exc}") from exc
    if found == "priority_order":
        raise OptionError(
            "set: a trace has its priorities as numbers with 10 as the highest, which priority_order does not change:"
            " --priority of `lab whatif` does"
        )
    return {NAME_IN_REDIS[found]: to_redis(found, parsed)}


def _with_entry(setting: str, in_force: str, entry: str) -> str:
    """Return the setting's text in Redis with *entry*, such as ``type:pdf=5``; ``type:pdf=none`` removes one."""
    typed, encoded = _ENTRIES[setting]
    entries = typed(in_force)
    assert isinstance(entries, dict), "what is in force is accepted"
    name, _, value = entry.rpartition("=")
    if value == _NONE:
        entries.pop(name, None)
        return encoded(entries)
    found = typed(entry)
    accepted = {"limits": key_limits.check, "tenants": tenants.check}[setting](entry)
    if not isinstance(found, dict) or len(found) != 1 or accepted:
        example = "limits.type:pdf=5" if setting == "limits" else "tenants.acme=max:3"
        raise OptionError(f"set {setting}.NAME=VALUE must be as in {example}, got: {setting + '.' + entry!r}")
    return encoded({**entries, **found})
