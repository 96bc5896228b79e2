"""The places that options of a call may say: a type (``affinity=``), or Celery's ``queue=`` and its kind.

By the time a call is routed, Celery has merged the call's options with attributes of the task, and a retry's options
with the place of the first try. So `celery_methods.calls` marks the values that the caller did not say, where Celery
adds them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import OptionError
from ..rules.affinity import Affinity, as_affinity

#: Options that say where a message goes.
ROUTING = ("queue", "routing_key", "exchange")

#: Options of a call, as Celery's router takes and returns them.
Options = dict[str, Any]


class _Marked(str):
    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class OfTask(_Marked):
    """A place that an attribute of the task says, not the caller."""


class OfFirstTry(_Marked):
    """The place where the first try of a retry went."""


class OptionsOfTask(Options):
    """Options that a task has for all its calls, with the places marked."""

    @classmethod
    def marked(cls, options: Mapping[str, object]) -> "OptionsOfTask":
        """Return *options* with a mark on each place. A place that is no str is known as the task's own object."""
        return cls({name: mark(OfTask, value) if name in ROUTING else value for name, value in options.items()})


def mark_first_try(options: Options, said: Mapping[str, object]) -> None:
    """Mark the places that Celery filled into *options* of a retry, whose caller gave *said* alone.

    Raises OptionError if *said* names a type and another queue.
    """
    check(said)
    for name in ROUTING:
        if name in options and not said.get(name):
            options[name] = mark(OfFirstTry, options[name])


def says_both(options: Mapping[str, object]) -> bool:
    """Return whether *options* say a type, and also a place in Celery's way."""
    return _type_in(options.get("affinity")) is not None and _says_place(options)


def differ(earlier: Mapping[str, object], later: Mapping[str, object]) -> bool:
    """Return whether of two calls' options one says a type alone, and the other a place in Celery's way."""
    if not (earlier and later):
        return False
    says_type, says_place = _type_in(later.get("affinity")) is not None, _says_place(later)
    if says_type == says_place:
        return False
    return _says_place(earlier) if says_type else _type_in(earlier.get("affinity")) is not None


def later_counts(earlier: Options, later: Mapping[str, object]) -> Options:
    """Return *earlier* options without the type or place that *later* ones, which `differ`, replace.

    Raises OptionError if the earlier ``affinity`` is not accepted.
    """
    if not _says_place(later):
        return without_place(earlier)
    asked = as_affinity(earlier["affinity"])
    return {**earlier, "affinity": replace(asked, type=None)}


def check(options: Mapping[str, object]) -> None:
    """Raise OptionError if *options* of one call name a type and another queue."""
    asked = as_affinity(options.get("affinity")).type
    if asked is not None:
        check_that_they_agree(asked, {name: options[name] for name in ROUTING if options.get(name)})


def places_said(options: Mapping[str, Any], task: Any) -> tuple[Options, bool]:
    """Return the places that the caller says, and whether other places are those of a first try."""
    said, is_retry = {}, False
    for name in ROUTING:
        value = options.get(name)
        if not value or type(value) is OfTask:
            continue
        if type(value) is OfFirstTry:
            is_retry = True
        elif isinstance(value, str) or value is not getattr(task, name, None):
            said[name] = value
    return said, is_retry


def _says_place(options: Mapping[str, object]) -> bool:
    return any(options.get(name) for name in ROUTING)


def mark(mark: type[_Marked], value: Any) -> Any:
    return mark(value) if isinstance(value, str) else value


def without_place(options: Options) -> Options:
    return {name: value for name, value in options.items() if name not in ROUTING}


def check_that_they_agree(asked: str, said: Mapping[str, object]) -> None:
    """Raise OptionError if a call says any place but the queue *asked*."""
    wrong = {"queue": said["queue"]} if "queue" in said else dict(said)
    if all(name != "exchange" and name_of(value) == asked for name, value in wrong.items()):
        return
    others = ", ".join(f"{name}={name_of(value)!r}" for name, value in wrong.items())
    names = " and ".join(f"{name}=" for name in ("affinity", *wrong))
    raise OptionError(f"{names} of one call must name the same queue, got: affinity={asked!r}, {others}")


def _type_in(affinity: object) -> object:
    """Return the type in an ``affinity=`` of any kind, accepted or not."""
    if isinstance(affinity, Mapping):
        return affinity.get("type")
    return affinity.type if isinstance(affinity, Affinity) else affinity


def name_of(place: Any) -> Any:
    return place if isinstance(place, str) else getattr(place, "name", place)
