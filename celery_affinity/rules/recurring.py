"""Recurring calls: calls that are made when none like them became pending for an interval. What an app says of them.

Like them are the calls of the same task, type and merge key: any of these, by whoever, puts the next firing off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from ..errors import OptionError, printed, refuse
from .keyed.spelled import Named
from .numbers import SECONDS_FROM_1
from .protocol import LONGEST_KEY
from .recurring_call import SINCE, is_name


@dataclass(frozen=True)
class Recurring(Named):
    """A call that is made when none like it became pending for *stale_after* s: one entry of ``affinity_recurring``.

    *task*: the task's name; *args*, *kwargs*, *options*: of the call, as those of an entry of ``beat_schedule``.
    *since*: "enqueue", or "end": the interval counts from the end of the last run that succeeded.

    Raises OptionError (a ValueError) for anything else.
    """

    task: str
    _: KW_ONLY
    stale_after: float
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    since: Literal["enqueue", "end"] = "enqueue"

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise refuse("task of a recurring call", "the name of a task", self.task)
        if isinstance(self.args, str) or not isinstance(self.args, Sequence):
            raise refuse("args of a recurring call", "a list or a tuple", self.args)
        for name in ("kwargs", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
                raise refuse(f"{name} of a recurring call", "a mapping of names to values", value)
        check_stale_after(self.stale_after)
        check_since(self.since)


def as_recurring(value: object) -> Recurring:
    """Return what an entry of ``affinity_recurring`` says. Raises OptionError."""
    if isinstance(value, Recurring):
        return value
    accepted = "a mapping such as {'task': 'proj.reroute', 'kwargs': {'city': 'HH'}, 'stale_after': 300}"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise refuse("a recurring call", accepted, value)
    for name in ("task", "stale_after"):
        if name not in value:
            raise OptionError(f"a recurring call must have a {name}: {accepted}, got: {printed(value)}")
    return Recurring(**value)


def check_name(name: object) -> str:
    """Return *name* if it can name a recurring call. Raises OptionError."""
    if not is_name(name):
        raise refuse("name of a recurring call", f"a text of 1 to {LONGEST_KEY} characters, percent-encoded", name)
    return name  # type: ignore[return-value]


def check_stale_after(value: object) -> float:
    """Return an interval, s, as it is. Raises OptionError."""
    if (accepted := SECONDS_FROM_1(value)) is not None:
        raise refuse("stale_after", accepted, value)
    return value  # type: ignore[return-value]


def check_since(value: object) -> str:
    """Return *value* if it is one of `SINCE`. Raises OptionError."""
    if not isinstance(value, str) or value not in SINCE:
        raise refuse("since", " or ".join(map(repr, SINCE)), value)
    return value
