"""The lanes of a type: one for each mode and priority, by the name ``mode.priority``, such as ``demand.7``.

Priorities are as arrows count them, 10 highest, or as their app does: a lane's name says either.
"""

from .protocol import MAX_PRIORITY

QUEUED, DEMAND = "queued", "demand"

#: Number of the lanes of one mode.
_OF_ONE_MODE = MAX_PRIORITY + 1

#: Names of all lanes that a type can have.
NAMES = tuple(f"{mode}.{priority}" for mode in (QUEUED, DEMAND) for priority in range(_OF_ONE_MODE))


def name(on_demand: bool, priority: int) -> str:
    """Return the name of the lane of jobs with this mode and priority."""
    return f"{DEMAND if on_demand else QUEUED}.{priority}"


def is_on_demand(lane: str) -> bool:
    """Return whether the jobs of *lane*, a name, are on demand."""
    return lane.startswith(DEMAND)


def number(on_demand: bool, priority: int) -> int:
    """Return the number of a lane: its priority; of an on-demand lane, from 11 on."""
    return priority + _OF_ONE_MODE * on_demand


def of_number(number: int) -> tuple[bool, int]:
    """Return whether the jobs of the lane with this number are on demand, and their priority."""
    return number >= _OF_ONE_MODE, number % _OF_ONE_MODE
