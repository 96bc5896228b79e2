"""The values of a call's options: which place counts, and what a retry, links and later steps inherit."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import OptionError
from .affinity import NOTHING, Affinity, as_affinity
from .call_options import FIRST_TRY, OPTIONS, PASSED_ON, PLAIN, Option


def _sources(option: Option) -> tuple[int, ...]:
    """Return the arguments of `plain` that may say a plain option, in the order of its places."""
    said, asked, left, own = range(4)
    of_places = (
        left if place == FIRST_TRY else own if place[0] == "task" else asked if place[1] == "affinity" else said
        for place in option.places
    )
    return tuple(dict.fromkeys(of_places))


_SOURCES = {name: _sources(option) for name, option in PLAIN.items()}


def plain(said: Mapping[str, Any], asked: Affinity, left: Mapping[str, Any], own: Affinity) -> dict[str, Any]:
    """Return the plain options of a call by name, without those that no place says; in the order of `Option.places`.

    *said*: the options of the call, and of its route. *asked*: its ``affinity=``. *left*: what the first try has left
    for a retry. *own*: what the task says. Raises OptionError for a value of *said* that is not accepted.
    """
    found = {}
    for name, option in PLAIN.items():
        of_call = said.get(name)
        if of_call is not None:
            option.check(of_call)
        values = (of_call, getattr(asked, name), left.get(name), getattr(own, name))
        value = next((values[source] for source in _SOURCES[name] if values[source] is not None), None)
        if value is not None:
            found[name] = value
    return found


def left_in(traces: object) -> dict[str, Any]:
    """Return the plain options that *traces* of a job keep for those who inherit them.

    Other programs may have written the traces: a value that is not accepted is none.
    """
    found: dict[str, Any] = {}
    if not isinstance(traces, Mapping):
        return found
    for name, option in PLAIN.items():
        value = traces.get(name)
        with suppress(OptionError):
            if value is not None:
                option.check(value)
                found[name] = value
    return found


def passed_on(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what *options* of a call or a signature say that links and later steps inherit.

    A user's stamp may have the name of an option, and is none. Raises OptionError for a value that is not accepted.
    """
    if not any(name in options for name in (*PASSED_ON, "affinity")):
        return {}
    stamps = options.get("stamped_headers") or ()
    asked = NOTHING if "affinity" in stamps else as_affinity(options.get("affinity"))
    found = {}
    for name in PASSED_ON:
        value = None if name in stamps else options.get(name)
        if value is not None:
            OPTIONS[name].check(value)
        elif name in PLAIN:
            value = getattr(asked, name)
        if value is not None:
            found[name] = value
    return found
