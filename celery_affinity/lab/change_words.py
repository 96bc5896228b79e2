"""The words in which somebody asks "what if", as an option has them. Each error names the option."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from ..errors import OptionError, SettingError
from ..rules import tenants
from ..rules.keyed import key_limits
from ..rules.protocol import MAX_PRIORITY
from ..rules.settings_by_name import parse_change
from ..rules.shared_settings import NAME_IN_REDIS, complete, to_redis
from ..rules.spelling import closest
from ..rules.type_name import is_type
from .changes import Changes
from .scenario import Scenario

Value = TypeVar("Value")

_WORKER = re.compile(r"\[([^\[\]]+)\]:([1-9][0-9]{0,5})")

#: The largest factor of `--rate`.
_MOST_TIMES = 100.0

#: Setting of several entries -> how its text is read, and how it is written into Redis.
_ENTRIES: Mapping[str, tuple[Callable[[str], object], Callable[..., str]]] = {
    "limits": (key_limits.typed, key_limits.encoded),
    "tenants": (tenants.typed, tenants.encoded),
}

#: What removes an entry.
_NONE = "none"


def read(
    scenario: Scenario,
    *,
    settings: Iterable[str] = (),
    add: Iterable[str] = (),
    remove: Sequence[str] = (),
    rates: Iterable[str] = (),
    priorities: Iterable[str] = (),
    seed: int = 1,
) -> Changes:
    """Return the changes of *scenario* that these words say. Raises OptionError, which names the option."""
    types = {each.type for each in scenario.arrivals}
    names = {each.name for each in scenario.workers}
    for name in remove:
        _check_known("--remove", "the name of a worker of the trace", name, names)
    return Changes(
        settings=_settings(scenario, settings),
        add=[_worker(word) for word in add],
        remove=remove,
        rates=dict(
            _of_type("--rate", word, types, f"a number above 0, {_MOST_TIMES:g} at most", _factor) for word in rates
        ),
        priorities=dict(
            _of_type("--priority", word, types, f"a whole number from 0 to {MAX_PRIORITY}", _priority)
            for word in priorities
        ),
        seed=seed,
    )


def _settings(scenario: Scenario, words: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        setting, dot, _ = name.removeprefix("affinity_").partition(".")
        if not equals:
            raise OptionError(f"--set must be NAME=VALUE, such as age_weight=32 or limits.type:pdf=5, got: {word!r}")
        if dot and setting in _ENTRIES:
            in_force = {**complete(scenario.settings), **found}[setting]
            found[setting] = _with_entry(setting, in_force, word.partition(".")[2])
        else:
            found |= _setting(name, value)
    return found


def _setting(name: str, value: str) -> dict[str, str]:
    try:
        found, parsed = parse_change(name, value)
    except SettingError as exc:
        raise OptionError(f"--set: {exc}") from exc
    if found == "priority_order":
        raise OptionError(
            "--set: a trace has its priorities as numbers with 10 as the highest, which priority_order does not change:"
            " --priority does"
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
        raise OptionError(f"--set {setting}.NAME=VALUE must be as in {example}, got: {setting + '.' + entry!r}")
    return encoded({**entries, **found})


def _worker(word: str) -> tuple[tuple[str, ...], int]:
    found = _WORKER.fullmatch(word)
    types = tuple(dict.fromkeys(each.strip() for each in found[1].split(","))) if found else ()
    if not found or not all(map(is_type, types)):
        raise OptionError(
            f"--add must be types in brackets and a number of slots, such as '[pdf,xls]:2', got: {word!r}"
        )
    return types, int(found[2])


def _of_type(
    option: str, word: str, types: Collection[str], accepted: str, read_value: Callable[[str], Value | None]
) -> tuple[str, Value]:
    type_, _, text = word.rpartition("=")
    value = read_value(text)
    if not type_ or value is None:
        raise OptionError(f"{option} must be TYPE=NUMBER with {accepted}, got: {word!r}")
    _check_known(option, "a type with jobs in the trace", type_, types)
    return type_, value


def _factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    return factor if 0 < factor <= _MOST_TIMES else None


def _priority(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) <= MAX_PRIORITY else None


def _check_known(option: str, accepted: str, name: str, names: Collection[str]) -> None:
    if name in names:
        return
    close = closest(name, names)
    question = f"; did you mean {close!r}?" if close else f"; there are: {', '.join(sorted(names)) or 'none'}"
    raise OptionError(f"{option} must be {accepted}, got: {name!r}{question}")
