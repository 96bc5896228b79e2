"""The number of jobs that a worker can run: the slots of its pool, less those taken, plus those lent."""

from collections import Counter

from ..clock import now_s
from ..rules.lending import NOTHING_LENT, Lending, lending, most_buffered
from .claims import Claims
from .host import Pool

#: Interval, s, at which the slots that are taken without a claim are counted anew.
_OTHER_INTERVAL_S = 0.5


class Capacity:
    """The slots of *pool*, some of which *claims* take."""

    def __init__(self, pool: Pool, claims: Claims) -> None:
        #: The scheduled queues that the worker serves.
        self.types: tuple[str, ...] = ()
        #: The worker's place among equally specialised ones, where the fleet's settings give it weight.
        self.priority = 0
        #: The slots that the server has confirmed last.
        self.confirmed = -1
        #: Celery's ``worker_prefetch_multiplier``, for the bound of buffered claims.
        self.prefetch_multiplier = 0
        self._pool, self._claims = pool, claims
        self._waiting: Counter[str] = Counter()
        self._avoided: frozenset[str] = frozenset()
        self._slots_told = self._other_told = 0
        self._counted_at_s = 0.0

    def room(self) -> int:
        """Return how many more jobs the pool could start if each claim that has not ended needed a slot."""
        return self._pool.size() - self._pool.unclaimed() - self._claims.unfinished()

    @property
    def slots(self) -> int:
        """How many jobs may run at a time."""
        return self._pool.size()

    @property
    def stops(self) -> str:
        """Which tasks the worker can stop, as the server has it (`Pool.stops`)."""
        return self._pool.stops

    # -- slots that are lent

    def lend(self, waiting: Counter[str], avoided: frozenset[str]) -> bool:
        """Lend the slots of claims that wait for a rate limit, *waiting* of each type. Return whether that is new.

        *avoided*: types of which no more jobs are wanted in any case.
        """
        is_new = (waiting, avoided) != (self._waiting, self._avoided)
        self._waiting, self._avoided = waiting, avoided
        return is_new

    @property
    def lent(self) -> int:
        return self._lending().lent if self._waiting else 0

    @property
    def unwanted(self) -> frozenset[str]:
        """Types from which the worker is to withdraw, whether the server was told or not."""
        full = self._full_buffers() if self._claims.buffered_count() else frozenset()
        if not self._waiting and not self._avoided:
            return full
        return full | self._lending().withdrawn | self._avoided.intersection(self.types)

    @property
    def buffered(self) -> int:
        """How many claims are in the buffers of tasks' strategies, and take no slot."""
        return self._claims.buffered_count()

    def _full_buffers(self) -> frozenset[str]:
        """Return the types of buffered claims if there are as many as there may be: other workers get the next jobs."""
        if self.buffered < most_buffered(self.prefetch_multiplier, self._pool.size()):
            return frozenset()
        return self._claims.buffered_types().intersection(self.types)

    def _lending(self) -> Lending:
        return lending(self._waiting, self.types, self._pool.size()) if self._waiting else NOTHING_LENT

    # -- what the server is told

    def tell(self) -> tuple[int, int]:
        """Return the slots, and how many of them are taken without a claim, for a call that tells the server both."""
        self._counted_at_s = now_s()
        self._slots_told, self._other_told = self._pool.size(), self._other()
        return self._slots_told, self._other_told

    def has_changed(self) -> bool:
        """Return whether the server has to be told anew.

        The pool has grown or shrunk, or (counted now and then) other slots are taken without a claim than before.
        """
        slots = self._pool.size()
        if slots != self._slots_told:
            self._slots_told = slots
            return True
        if now_s() - self._counted_at_s > _OTHER_INTERVAL_S:
            self._counted_at_s = now_s()
            return self._other() != self._other_told
        return False

    def _other(self) -> int:
        taken = self._pool.unclaimed() + self._claims.void_count()
        return taken - self._lending().lent - self._claims.buffered_count()
