"""Recurring calls: calls that are made if no matching call became pending for an interval.

A call matches if it has the same task, type and merge key. Any matching call, by any publisher, postpones the next one.
`RecurringCall` is the form on the server, `Recurring` the form in ``affinity_recurring``.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from ..errors import OptionError, printable, refuse
from ..schema import values
from ..schema.constants import LEAST_STALE_US, MAX_KEY_LENGTH, MAX_NUMBER_LENGTH, MAX_SIGNATURE
from ..schema.values import SECONDS_FROM_1, is_readable, is_whole
from .key_templates import NamedKey

#: Start of the interval: when a call becomes pending, or when a run succeeded.
SINCE = ("enqueue", "end")
_MERGE_KEY = re.compile(f"[A-Za-z0-9_.~%-]{{1,{MAX_KEY_LENGTH}}}")


@dataclass(frozen=True)
class RecurringCall:
    """A recurring call as stored on the server. Raises OptionError for values that the server rejects."""

    name: str
    #: Name of the task.
    task: str
    type: str
    #: Encoded as in the rules of a job.
    merge_key: str
    #: The call is made if no matching call became pending for this time.
    stale_after_us: int
    #: One of `SINCE`.
    since: str = "enqueue"
    #: The serialized call, which only the app reads.
    signature: str = ""

    def __post_init__(self) -> None:
        for field_name, value in (("name", self.name), ("type", self.type)):
            if not is_recurring_name(value):
                raise refuse(
                    f"{field_name} of a recurring call",
                    f"a text of up to {MAX_KEY_LENGTH} characters, percent-encoded",
                    value,
                )
        if not isinstance(self.task, str) or not is_readable(self.task):
            raise refuse("task of a recurring call", "the name of a task, a text in UTF-8", self.task)
        if not isinstance(self.merge_key, str) or not _MERGE_KEY.fullmatch(self.merge_key):
            accepted = f"1 to {MAX_KEY_LENGTH} characters, percent-encoded"
            raise refuse("merge key of a recurring call", accepted, self.merge_key)
        if not is_whole(self.stale_after_us) or not LEAST_STALE_US <= self.stale_after_us < 10 ** (
            MAX_NUMBER_LENGTH - 2
        ):
            raise refuse("stale_after_us of a recurring call", f"µs, {LEAST_STALE_US:,} or more", self.stale_after_us)
        if self.since not in SINCE:
            raise refuse("since of a recurring call", " or ".join(map(repr, SINCE)), self.since)
        if not isinstance(self.signature, str) or not is_readable(self.signature):
            raise refuse("signature of a recurring call", "a text in UTF-8", self.signature)
        if len(self.signature.encode()) > MAX_SIGNATURE:
            accepted = f"at most {MAX_SIGNATURE:,} bytes"
            raise refuse("signature of a recurring call", accepted, f"{len(self.signature.encode()):,} bytes")

    @property
    def arguments(self) -> tuple[str | int, ...]:
        """The arguments of the server function `recur`."""
        name, type_ = values.encode_part(self.name), values.encode_part(self.type)
        return name, type_, self.merge_key, self.stale_after_us, self.since, self.task, self.signature

    @property
    def digest(self) -> str:
        """A digest of everything except the name, equal to the digest that the server function `recur` computes."""
        _, type_, merge_key, stale_after_us, since, task, signature = self.arguments
        text = f"{type_} {merge_key} {stale_after_us} {since} {task}\n{signature}"
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def is_recurring_name(value: object) -> bool:
    """Return True if *value* is a valid name of a recurring call."""
    return (
        isinstance(value, str)
        and value != ""
        and is_readable(value)
        and len(values.encode_part(value)) <= MAX_KEY_LENGTH
    )


@dataclass(frozen=True)
class Recurring(NamedKey):
    """A call that is made if no matching call became pending for a while: one entry of ``affinity_recurring``.

    *task*: the task's name.
    *stale_after*: the interval in seconds.
    *args*, *kwargs*, *options*: of the call, like in an entry of ``beat_schedule``.
    *since*: "enqueue", or "end": the interval starts at the end of the last successful run.

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
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise refuse(f"{name} of a recurring call", "a mapping of names to values", value)
        check_stale_after(self.stale_after)
        check_since(self.since)


def as_recurring(value: object) -> Recurring:
    """Return an entry of ``affinity_recurring`` as a Recurring. Raises OptionError."""
    if isinstance(value, Recurring):
        return value
    accepted = "a mapping such as {'task': 'proj.reroute', 'kwargs': {'city': 'HH'}, 'stale_after': 300}"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise refuse("a recurring call", accepted, value)
    for name in ("task", "stale_after"):
        if name not in value:
            raise OptionError(f"a recurring call must have a {name}: {accepted}, got: {printable(value)}")
    return Recurring(**value)


def check_name(name: object) -> str:
    """Return *name* if it is a valid name of a recurring call. Raises OptionError."""
    if not is_recurring_name(name):
        raise refuse("name of a recurring call", f"a text of 1 to {MAX_KEY_LENGTH} characters, percent-encoded", name)
    return name  # type: ignore[return-value]


def check_stale_after(value: object) -> float:
    """Return *value* if it is a valid interval in seconds. Raises OptionError."""
    if (accepted := SECONDS_FROM_1(value)) is not None:
        raise refuse("stale_after", accepted, value)
    return value  # type: ignore[return-value]


def check_since(value: object) -> str:
    """Return *value* if it is one of `SINCE`. Raises OptionError."""
    if not isinstance(value, str) or value not in SINCE:
        raise refuse("since", " or ".join(map(repr, SINCE)), value)
    return value
