"""What a worker may hold beyond its slots (`affinity_lookahead`), as a release says it to the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .encoding import encode


@dataclass(frozen=True)
class Ahead:
    """So many *jobs* beyond the worker's slots; or, with *costs*, further jobs that take *work_us* in all.

    *costs*: type -> how long one of its jobs keeps the worker busy, µs. Jobs of other types are not taken ahead, and
    none is while a job on demand waits, which would start later for it.
    """

    jobs: int = 0
    work_us: int = 0
    costs: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        """Return the argument of ``release``: ``8``, or ``20000 pdf 1500 excel 900``."""
        if not self.costs:
            return str(self.jobs)
        return " ".join([str(self.work_us), *(f"{encode(type_)} {us}" for type_, us in self.costs.items())])


#: Nothing beyond the slots.
NOTHING = Ahead()
