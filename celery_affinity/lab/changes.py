"""Changes of a scenario for `lab whatif`: parsed from options, and applied.

``set NAME=VALUE`` names a setting as in an app.conf, or one entry of a setting with several. Errors name the option.
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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
    settings: Mapping[str, str] = field(default_factory=dict)  #: Redis name -> string
    add: Sequence[tuple[tuple[str, ...], int]] = ()  #: types and slots of additional workers, present from the start
    remove: Sequence[str] = ()  #: names of workers to leave out
    rates: Mapping[str, float] = field(default_factory=dict)  #: type -> factor of its arrivals
    priorities: Mapping[str, int] = field(default_factory=dict)  #: type -> priority of its jobs
    seed: int = 1  #: seed for the choice of arrivals that are repeated or left out


#: Settings that determine head starts: with other values, the recorded ones do not count.
_OF_HEAD_STARTS = {"target_wait_us", "stretch"}


def apply_changes(scenario: Scenario, changes: Changes) -> Scenario:
    """Return *scenario* with *changes*. Remaining jobs keep their numbers; additional jobs have higher numbers."""
    arrivals = [
        replace(job, priority=changes.priorities[job.type]) if job.type in changes.priorities else job
        for job in scenario.arrivals
    ]
    if not _OF_HEAD_STARTS.isdisjoint(changes.settings):
        arrivals = [job if job.head_us is None else replace(job, head_us=None) for job in arrivals]
    for type_, factor in changes.rates.items():
        arrivals = _scale_arrivals(arrivals, type_, factor, changes.seed)
    arrivals.sort(key=lambda arrival: (arrival.since_us, arrival.number))
    kept = [worker for worker in scenario.workers if worker.name not in changes.remove]
    added = [TracedWorker(f"added-{index}@lab", types, slots) for index, (types, slots) in enumerate(changes.add, 1)]
    return Scenario((*kept, *added), tuple(arrivals), {**scenario.settings, **changes.settings}, scenario.paused)


def _scale_arrivals(arrivals: Sequence[Arrival], type_: str, factor: float, seed: int) -> list[Arrival]:
    """Return *arrivals* with *factor* times as many of *type_*, in the same rhythm.

    The copy of a job arrives at a random time before the next job of its type, so bursts and pauses stay in place. Jobs
    that waited at the start stay unchanged.
    """
    rng = random.Random(f"{seed} {type_}")  # noqa: S311  # no secret
    kept = [other for other in arrivals if other.type != type_ or other.since_us <= 0]
    scaled = [other for other in arrivals if other.type == type_ and other.since_us > 0]
    whole, additional = divmod(round(len(scaled) * factor), len(scaled)) if scaled else (0, 0)
    chosen = set(rng.sample(range(len(scaled)), additional))
    number = max((other.number for other in arrivals), default=0)
    for index, arrival in enumerate(scaled):
        times = whole + (index in chosen)
        kept += [arrival] if times else []
        gap_us = scaled[index + 1].since_us - arrival.since_us if index + 1 < len(scaled) else 0
        for _ in range(times - 1):
            number += 1
            kept.append(replace(move_arrival(arrival, rng.randint(0, gap_us)), number=number))
    return kept


def move_arrival(job: Arrival, later_us: int) -> Arrival:
    return replace(job, since_us=job.since_us + later_us, enqueued_us=job.enqueued_us + later_us)


#: Setting with several entries -> functions that parse, check and encode it, and an example of an entry.
_ENTRIES: Mapping[
    str, tuple[Callable[[str], Mapping[str, Any] | None], Callable[[object], str | None], Callable[..., str], str]
] = {
    "limits": (limits.typed_limits, limits.check_limits, limits.encoded_limits, "type:pdf=5"),
    "tenants": (tenants.typed_tenants, tenants.check_tenants, tenants.encoded_tenants, "acme=max:3"),
}
#: Value that removes an entry.
_REMOVAL = "none"


def read_setting_word(before: Mapping[str, str], assignments: Iterable[str]) -> dict[str, str]:
    """Return the settings in *assignments* by Redis name. *before*: the settings in force. Raises OptionError."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        setting, dot, _ = name.removeprefix("affinity_").partition(".")
        if not equals:
            raise OptionError(
                f"set must be NAME=VALUE, such as age_weight=32 or limits.type:pdf=5, got: {assignment!r}"
            )
        if dot and setting in _ENTRIES:
            in_force = {**complete_settings(before), **settings}[setting]
            settings[setting] = _change_entry(setting, in_force, assignment.partition(".")[2])
            continue
        try:
            setting, parsed = parse_change(name, value)
        except SettingError as exc:
            raise OptionError(f"set: {exc}") from exc
        if setting == "priority_order":
            raise OptionError(
                "set: a trace has its priorities as numbers with 10 as the highest, which priority_order does not "
                "change: --priority of `lab whatif` does"
            )
        settings[NAME_IN_REDIS[setting]] = to_redis(setting, parsed)
    return settings


def _change_entry(setting: str, in_force: str, entry: str) -> str:
    """Return the setting in Redis format with *entry*, such as ``type:pdf=5``; ``type:pdf=none`` removes an entry."""
    parse, check, encode, example = _ENTRIES[setting]
    entries = parse(in_force)
    assert entries is not None, "what is in force is accepted"
    name, _, value = entry.rpartition("=")
    if value == _REMOVAL:
        return encode({pattern: kept for pattern, kept in entries.items() if pattern != name})
    change = parse(entry)
    if change is None or len(change) != 1 or check(entry):
        raise OptionError(f"set {setting}.NAME=VALUE must be as in {setting}.{example}, got: {setting + '.' + entry!r}")
    return encode({**entries, **change})


Value = TypeVar("Value")

_WORKER = re.compile(r"\[([^\[\]]+)\]:([1-9][0-9]{0,5})")
#: Maximum factor of `--rate`.
_MAX_FACTOR = 100.0


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
    """Return the changes of *scenario* in these options. Raises OptionError, which names the option."""
    types = {arrival.type for arrival in scenario.arrivals}
    names = {worker.name for worker in scenario.workers}
    for name in remove:
        _check_is_known("--remove", "the name of a worker of the trace", name, names)
    try:
        changed_settings = read_setting_word(scenario.settings, settings)
    except OptionError as exc:
        raise OptionError(f"--{exc}") from None
    return Changes(
        settings=changed_settings,
        add=[_parse_worker(word) for word in add],
        remove=remove,
        rates=dict(
            _parse_type_value("--rate", word, types, f"a number above 0, {_MAX_FACTOR:g} at most", _parse_factor)
            for word in rates
        ),
        priorities=dict(
            _parse_type_value("--priority", word, types, f"a whole number from 0 to {MAX_PRIORITY}", _parse_priority)
            for word in priorities
        ),
        seed=seed,
    )


def _parse_worker(text: str) -> tuple[tuple[str, ...], int]:
    match = _WORKER.fullmatch(text)
    types = tuple(dict.fromkeys(type_.strip() for type_ in match[1].split(","))) if match else ()
    if not match or not all(map(is_type_name, types)):
        raise OptionError(
            f"--add must be types in brackets and a number of slots, such as '[pdf,xls]:2', got: {text!r}"
        )
    return types, int(match[2])


def _parse_type_value(
    option: str, word: str, types: Collection[str], accepted: str, read_value: Callable[[str], Value | None]
) -> tuple[str, Value]:
    type_, _, text = word.rpartition("=")
    value = read_value(text)
    if not type_ or value is None:
        raise OptionError(f"{option} must be TYPE=NUMBER with {accepted}, got: {word!r}")
    _check_is_known(option, "a type with jobs in the trace", type_, types)
    return type_, value


def _parse_factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    return factor if 0 < factor <= _MAX_FACTOR else None


def _parse_priority(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 2 and int(text) <= MAX_PRIORITY else None


def _check_is_known(option: str, accepted: str, name: str, names: Collection[str]) -> None:
    if name in names:
        return
    close = closest_names(name, names)
    question = f"; did you mean {close!r}?" if close else f"; there are: {', '.join(sorted(names)) or 'none'}"
    raise OptionError(f"{option} must be {accepted}, got: {name!r}{question}")
