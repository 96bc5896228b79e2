"""Waiting jobs as observers read them: lanes with their first jobs, from the texts of key `heads`, and backlogs."""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from ..rules import lanes
from ..rules.protocol import LONGEST_NUMBER
from ..rules.rows import LARGEST, number_of

#: Enqueue time, µs, of a head whose own cannot be read: after all others.
_NEVER_US = LARGEST


class Lane(NamedTuple):
    """The waiting jobs of one type, mode and priority, and the first of them. Lanes sort by the age of that job.

    *type*: encoded, as in Redis. *is_kept_back*: these are the jobs that keys keep out of the lane.
    """

    enqueued_us: int
    job_id: str
    type: str
    name: str
    is_kept_back: bool = False

    @property
    def on_demand(self) -> bool:
        return lanes.is_on_demand(self.name)

    @property
    def priority(self) -> int:
        """The priority as its app counted it, 10 highest (see `Weights.priority_reversed`)."""
        return number_of(self.name.rpartition(".")[2])


class Backlog(NamedTuple):
    """The pending jobs of a type. *oldest_us*: the enqueue time of the first. *kept_back*: jobs that keys keep back."""

    jobs: int
    on_demand: int
    oldest_us: int
    kept_back: int = 0

    def plus(self, other: "Backlog") -> "Backlog":
        """Return the jobs of both."""
        return Backlog(
            self.jobs + other.jobs,
            self.on_demand + other.on_demand,
            min(self.oldest_us, other.oldest_us),
            self.kept_back + other.kept_back,
        )


NO_JOBS = Backlog(0, 0, _NEVER_US)


def lanes_in(type_: str, packed: str) -> list[Lane]:
    """Return the lanes of a type whose value in `heads` is *packed*: lane, enqueue time and job id of each head."""
    words = packed.split()
    names, times, ids = words[::3], words[1::3], words[2::3]
    if all(map(str.isdecimal, times)) and max(map(len, times), default=0) <= LONGEST_NUMBER:
        return list(map(Lane, map(int, times), ids, repeat(type_), names))
    # Another program has written here: the heads that can be read count.
    of_each = zip(times, ids, names, strict=False)
    return [Lane(int(at_us), id_, type_, name) for at_us, id_, name in of_each if number_of(at_us, -1) >= 0]


def backlog_of(packed: str, lengths: Sequence[int]) -> Backlog:
    """Return the backlog of the lanes that *packed*, a value of `heads`, names. *lengths*: of these lanes."""
    words = packed.split()
    on_demand = [length for name, length in zip(words[::3], lengths, strict=True) if lanes.is_on_demand(name)]
    oldest_us = min((number_of(each, _NEVER_US) for each in words[1::3]), default=_NEVER_US)
    return Backlog(sum(lengths), sum(on_demand), oldest_us)
