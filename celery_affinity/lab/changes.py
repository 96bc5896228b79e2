"""What-if: changes of a scenario, and the scenario that they make.

The words ``set NAME=VALUE``: a setting by its name in an app.conf, or one entry of a setting that has several.

The words in which somebody asks "what if", as an option has them. Each error names the option.
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..errors import OptionError, SettingError
from ..options.did_you_mean import closest_names
from ..options.type_names import is_type_name
from ..schema.constants import MAX_PRIORITY
from ..settings import limits, tenants
from ..settings.loader import parse_change
from ..settings.wire import NAME_IN_REDIS, complete_settings, to_redis
from .scenario import Arrival, Scenario
from .trace import TracedWorker


@dataclass(frozen=True)
class Changes:
    """*settings*: by their name in Redis, as text. *add*: types and slots of each further worker, from the beginning.

    *remove*: names of workers that are never there. *rates*: type -> by how much more jobs of it arrive. *priorities*:
    type -> that of its jobs. *seed*: of the choice of arrivals that are repeated or left out.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    add: Sequence[tuple[tuple[str, ...], int]] = ()
    remove: Sequence[str] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    seed: int = 1


def apply_changes(scenario: Scenario, changes: Changes) -> Scenario:
    """Return *scenario* with *changes*. Jobs that are left keep their numbers; further ones have higher numbers."""
    arrivals = [_with_priority(each, changes.priorities) for each in scenario.arrivals]
    for type_, factor in changes.rates.items():
        arrivals = _resampled(arrivals, type_, factor, changes.seed)
    arrivals.sort(key=lambda each: (each.since_us, each.number))
    return Scenario(
        _workers(scenario.workers, changes),
        tuple(arrivals),
        {**scenario.settings, **changes.settings},
        scenario.paused,
    )


def _with_priority(arrival: Arrival, priorities: Mapping[str, int]) -> Arrival:
    if arrival.type not in priorities:
        return arrival
    return replace(arrival, priority=priorities[arrival.type])


def _workers(workers: Sequence[TracedWorker], changes: Changes) -> tuple[TracedWorker, ...]:
    kept = [each for each in workers if each.name not in changes.remove]
    added = [TracedWorker(f"added-{nth}@lab", types, slots) for nth, (types, slots) in enumerate(changes.add, 1)]
    return (*kept, *added)


def _resampled(arrivals: Sequence[Arrival], type_: str, factor: float, seed: int) -> list[Arrival]:
    """Return *arrivals* with *factor* times as many of *type_*, in the same rhythm.

    A job that is repeated comes again at a random time before the next one of its type, so floods and pauses stay
    where they are. What waited at the beginning stays as it is.
    """
    chance = random.Random(f"{seed} {type_}")  # noqa: S311  # no secret
    kept = [each for each in arrivals if each.type != type_ or each.since_us <= 0]
    some = [each for each in arrivals if each.type == type_ and each.since_us > 0]
    whole, rest = divmod(round(len(some) * factor), len(some)) if some else (0, 0)
    chosen = set(chance.sample(range(len(some)), rest))
    number = max((each.number for each in arrivals), default=0)
    for nth, arrival in enumerate(some):
        times = whole + (nth in chosen)
        kept += [arrival] if times else []
        gap_us = some[nth + 1].since_us - arrival.since_us if nth + 1 < len(some) else 0
        for _ in range(times - 1):
            number += 1
            later_us = chance.randint(0, gap_us)
            kept.append(
                replace(
                    arrival,
                    number=number,
                    since_us=arrival.since_us + later_us,
                    enqueued_us=arrival.enqueued_us + later_us,
                )
            )
    return kept


#: Setting of several entries -> how its text is read, and how it is written into Redis.
_ENTRIES: Mapping[str, tuple[Callable[[str], object], Callable[..., str]]] = {
    "limits": (limits.typed_limits, limits.encoded_limits),
    "tenants": (tenants.typed_tenants, tenants.encoded_tenants),
}

#: What removes an entry.
_NONE = "none"


def read_setting_word(before: Mapping[str, str], words: Iterable[str]) -> dict[str, str]:
    """Return the settings that *words* say, by their name in Redis. *before*: those in force. Raises OptionError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        setting, dot, _ = name.removeprefix("affinity_").partition(".")
        if not equals:
            raise OptionError(f"set must be NAME=VALUE, such as age_weight=32 or limits.type:pdf=5, got: {word!r}")
        if dot and setting in _ENTRIES:
            in_force = {**complete_settings(before), **found}[setting]
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
    accepted = {"limits": limits.check_limits, "tenants": tenants.check_tenants}[setting](entry)
    if not isinstance(found, dict) or len(found) != 1 or accepted:
        example = "limits.type:pdf=5" if setting == "limits" else "tenants.acme=max:3"
        raise OptionError(f"set {setting}.NAME=VALUE must be as in {example}, got: {setting + '.' + entry!r}")
    return encoded({**entries, **found})


Value = TypeVar("Value")

_WORKER = re.compile(r"\[([^\[\]]+)\]:([1-9][0-9]{0,5})")

#: The largest factor of `--rate`.
_MOST_TIMES = 100.0


def read_changes(
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
    try:
        return read_setting_word(scenario.settings, words)
    except OptionError as exc:
        raise OptionError(f"--{exc}") from None


def _worker(word: str) -> tuple[tuple[str, ...], int]:
    found = _WORKER.fullmatch(word)
    types = tuple(dict.fromkeys(each.strip() for each in found[1].split(","))) if found else ()
    if not found or not all(map(is_type_name, types)):
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
    return int(text) if text.isdecimal() and len(text) <= 2 and int(text) <= MAX_PRIORITY else None


def _check_known(option: str, accepted: str, name: str, names: Collection[str]) -> None:
    if name in names:
        return
    close = closest_names(name, names)
    question = f"; did you mean {close!r}?" if close else f"; there are: {', '.join(sorted(names)) or 'none'}"
    raise OptionError(f"{option} must be {accepted}, got: {name!r}{question}")
