"""What `Scheduler` takes for the arrows: how jobs ended, who joins, which claims a worker holds, what it adds up."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..lua.library import Argument
from ..rules import encoding


class End(NamedTuple):
    """The end of a claimed job. *outcome*: a word of ``release.lua`` ("acked", "failed", ...), and a reason, if any."""

    job_id: str
    fence: str
    outcome: str


@dataclass(frozen=True)
class Joining:
    """The words in which a worker of *app* presents itself when it joins. *slots*: the concurrency.

    *other*: slots taken without a claim, less those that claims lend. *withdrawn*: types that the worker will serve
    again soon. *stops*: which tasks it can stop (`Pool.stops` in `membership.host`). *priority*: its place among
    equally specialised workers (``affinity_placement``).
    """

    worker: str
    name: str
    types: Sequence[str]
    slots: int
    other: int = 0
    app: str = ""
    withdrawn: Sequence[str] = ()
    stops: str = ""
    priority: int = 0

    @property
    def encoded_types(self) -> list[str]:
        """The types of the profile. A type that the worker withdrew from counts: withdrawing makes no specialist."""
        types = {*self.types, *map(encoding.withdrawn, self.withdrawn)}
        return sorted(map(encoding.encode, types))

    @property
    def profile(self) -> str:
        """A short name of the set of types, shared by all workers that serve just these types."""
        return hashlib.sha1(" ".join(self.encoded_types).encode(), usedforsecurity=False).hexdigest()[:16]


class ClaimReport(NamedTuple):
    """A claim that its worker says it holds. *running_us*: time since the task started, -1 if it has not."""

    job_id: str
    fence: str
    running_us: int


class TypeSums(NamedTuple):
    """What a worker adds up of its jobs of *type*, since it did so last. *grown*: field of the metrics -> by how much.

    *ended*: number of jobs that ended in a slot. *took_us*: the sum of their times there. *pace*: the worker's, in
    words (`rules.pace`); "" if none ended.
    """

    type: str
    grown: Mapping[str, int]
    ended: int = 0
    took_us: int = 0
    pace: str = ""

    @property
    def words(self) -> list[Argument]:
        """The sums as the arrow takes them."""
        fields = [word for each in self.grown.items() for word in each]
        return [encoding.encode(self.type), self.ended, self.took_us, self.pace, len(self.grown), *fields]
