"""What a task may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import refuse
from .score import MAX_PRIORITY
from .type_name import ACCEPTED, is_type


@dataclass(frozen=True)
class Affinity:
    """What a task needs: a *type* of worker, and how urgent it is.

    *type* is a Celery queue name; None leaves the queue that the task is routed to. *priority* is 0..10, 10 highest
    (with ``affinity_priority_order = "lower-first"`` 0 is); None leaves the task's own. *on_demand*: a user waits for
    the answer; None leaves it to whoever calls.

    Raises OptionError (a ValueError) for anything else.
    """

    type: str | None = None
    priority: int | None = None
    on_demand: bool | None = None

    def __post_init__(self) -> None:
        if self.type is not None:
            check_type(self.type)
        if self.priority is not None:
            object.__setattr__(self, "priority", check_priority(self.priority))
        if self.on_demand is not None:
            check_on_demand(self.on_demand)

    def __json__(self) -> dict[str, Any]:
        """Return what kombu writes when a signature that carries this is sent within a message."""
        return {"type": self.type, "priority": self.priority, "on_demand": self.on_demand}


#: What a task asks for that says nothing.
NOTHING = Affinity()


def as_affinity(value: object) -> Affinity:
    """Return what an ``affinity=`` option means: a type, an Affinity, a mapping of its fields, or None."""
    if value is None:
        return NOTHING
    if isinstance(value, Affinity):
        return value
    if isinstance(value, str):
        return _of_type(value)
    if isinstance(value, Mapping) and set(value) <= {"type", "priority", "on_demand"}:
        return Affinity(**value)
    raise refuse("affinity", "a type (str) or an Affinity", value)


@lru_cache(maxsize=4096)
def _of_type(name: str) -> Affinity:
    return Affinity(name)


def check_type(value: object) -> str:
    """Return *value* if it can name a type, else raise OptionError."""
    if not isinstance(value, str) or not is_type(value):
        raise refuse("affinity", ACCEPTED, value)
    return value


def check_priority(value: object) -> int:
    """Return the priority that *value* is, else raise OptionError.

    As with stock Celery ``"5"``, ``5.0`` and ``True`` are whole numbers as well.
    """
    try:
        priority = int(value)  # type: ignore[call-overload]
        is_whole = isinstance(value, str) or priority == value
    except (TypeError, ValueError, OverflowError):
        priority, is_whole = -1, False
    if not is_whole or not 0 <= priority <= MAX_PRIORITY:
        raise refuse("priority", f"a whole number from 0 to {MAX_PRIORITY}", value)
    return int(priority)


def check_on_demand(value: object) -> bool:
    """Return *value* if it is a bool, else raise OptionError."""
    if not isinstance(value, bool):
        raise refuse("on_demand", "True or False", value)
    return value
