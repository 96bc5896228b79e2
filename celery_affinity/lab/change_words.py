"""The words in which somebody asks "what if", as an option has them. Each error names the option."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from ..errors import OptionError
from ..rules.protocol import MAX_PRIORITY
from ..rules.spelling import closest
from ..rules.type_name import is_type
from . import setting_words
from .changes import Changes
from .scenario import Scenario

Value = TypeVar("Value")

_WORKER = re.compile(r"\[([^\[\]]+)\]:([1-9][0-9]{0,5})")

#: The largest factor of `--rate`.
_MOST_TIMES = 100.0


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
    try:
        return setting_words.read(scenario.settings, words)
    except OptionError as exc:
        raise OptionError(f"--{exc}") from None


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
    return int(text) if text.isdecimal() and len(text) <= 2 and int(text) <= MAX_PRIORITY else None


def _check_known(option: str, accepted: str, name: str, names: Collection[str]) -> None:
    if name in names:
        return
    close = closest(name, names)
    question = f"; did you mean {close!r}?" if close else f"; there are: {', '.join(sorted(names)) or 'none'}"
    raise OptionError(f"{option} must be {accepted}, got: {name!r}{question}")
