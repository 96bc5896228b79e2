"""Count the slots that a worker offers to the server, and log the pauses that affect the worker."""

from collections import Counter
from collections.abc import Collection

from redis.exceptions import ResponseError

from ..clock import now_s
from ..log_limit import limited_logger
from ..policy.slot_math import NOTHING_LENT, Lending, lending_of, max_buffered_calls
from ..reports import sentences
from ..reports.type_limits import PauseInForce, pauses_in_force
from ..scheduler.reader import Reader
from .claims import ClaimTable
from .held_claim import PoolPort

#: Seconds between two counts of the slots that are occupied without a claim.
_COUNT_INTERVAL_S = 0.5


class Capacity:
    """The slots of *pool*, minus the occupied ones, plus those lent. *claims* occupy some of the slots."""

    def __init__(self, pool: PoolPort, claims: ClaimTable) -> None:
        #: The scheduled queues that the worker serves.
        self.types: tuple[str, ...] = ()
        #: Rank among equally specialised workers, if the fleet's settings use priorities.
        self.priority = 0
        #: Slots that the server confirmed last.
        self.confirmed = -1
        #: Celery's ``worker_prefetch_multiplier``, which determines the maximum number of buffered claims.
        self.prefetch_multiplier = 0
        self._pool, self._claims = pool, claims
        self._waiting: Counter[str] = Counter()
        self._avoided: frozenset[str] = frozenset()
        self._reported_slots = self._reported_other = 0
        self._counted_at_s = 0.0

    def room(self) -> int:
        """Return the number of jobs that the pool could still start if each unfinished claim needed a slot."""
        return self._pool.size() - self._pool.unclaimed() - self._claims.unfinished()

    @property
    def slots(self) -> int:
        """Number of jobs that can run at the same time."""
        return self._pool.size()

    @property
    def stops(self) -> str:
        """Tasks that the worker can stop, in the server's format (`PoolPort.stops`)."""
        return self._pool.stops

    def lend(self, waiting: Counter[str], avoided: frozenset[str]) -> bool:
        """Lend the slots of claims that wait for a rate limit, and return True if the arguments changed.

        *waiting* counts these claims by type. The worker wants no further jobs of the types *avoided*.
        """
        is_new = (waiting, avoided) != (self._waiting, self._avoided)
        self._waiting, self._avoided = waiting, avoided
        return is_new

    @property
    def lent(self) -> int:
        return self._lending().lent if self._waiting else 0

    @property
    def unwanted(self) -> frozenset[str]:
        """Types from which the worker should withdraw, even if that is not reported to the server yet."""
        # If the buffers are full, other workers get the next jobs of the buffered claims' types.
        is_full = self.buffered and self.buffered >= max_buffered_calls(self.prefetch_multiplier, self._pool.size())
        full = self._claims.buffered_types().intersection(self.types) if is_full else frozenset()
        if not self._waiting and not self._avoided:
            return full
        return full | self._lending().withdrawn | self._avoided.intersection(self.types)

    @property
    def buffered(self) -> int:
        """Number of claims in the buffers of custom strategies. They occupy no slot."""
        return self._claims.buffered_count()

    def _lending(self) -> Lending:
        return lending_of(self._waiting, self.types, self._pool.size()) if self._waiting else NOTHING_LENT

    def tell(self) -> tuple[int, int]:
        """Return the slots and the slots occupied without a claim, and record that both are reported now."""
        self._counted_at_s = now_s()
        self._reported_slots, self._reported_other = self._pool.size(), self._count_other()
        return self._reported_slots, self._reported_other

    def has_changed(self) -> bool:
        """Return True if the server needs a new report.

        Either the pool size changed, or a periodic count found a different number of slots occupied without a claim.
        """
        slots = self._pool.size()
        if slots != self._reported_slots:
            self._reported_slots = slots
            return True
        if now_s() - self._counted_at_s > _COUNT_INTERVAL_S:
            self._counted_at_s = now_s()
            return self._count_other() != self._reported_other
        return False

    def _count_other(self) -> int:
        occupied = self._pool.unclaimed() + self._claims.void_count()
        return occupied - self._lending().lent - self._claims.buffered_count()


logger = limited_logger(__name__)


class PauseLog:
    """Logs when a pause begins or ends: of everything, of a key, or of a type that the worker serves."""

    def __init__(self) -> None:
        self._revision = 0
        self._pauses: dict[str, PauseInForce] = {}

    def update(self, reader: Reader, revision: int, types: Collection[str]) -> None:
        """If *revision* of the settings is new, read the pauses and log the changes for a worker of *types*."""
        if revision == self._revision:
            return
        self._revision = revision
        try:
            pauses = {
                str(pause): pause for pause in pauses_in_force(reader) if pause.kind != "type" or pause.name in types
            }
        except ResponseError as exc:
            logger.warning("The pauses in Redis cannot be read, and are not logged: %s", exc)
            return
        previous, self._pauses = self._pauses, pauses
        for name, pause in pauses.items():
            if previous.get(name) != pause:
                logger.warning(_sentence(sentences.pause_sentence(pause)))
        for name in previous.keys() - pauses.keys():
            logger.info("%s %s no longer paused", _sentence(name), previous[name].verb)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
