"""The number of jobs that a worker can run: the slots of its pool, less those taken, plus those lent.

Claims from before a pause, which do not start here any more: a sign of the server recalls them.

Pauses in the log of a worker: when one begins that concerns the worker, and when it ends.
"""

from collections import Counter
from collections.abc import Collection

from redis.exceptions import ResponseError

from ..clock import now_s
from ..log_limit import limited_logger
from ..policy.slot_math import NOTHING_LENT, Lending, lending_of, most_buffered
from ..reports import sentences
from ..reports.type_limits import PauseInForce, pauses_in_force
from ..scheduler.reader import Reader
from ..schema import job_record, keys
from ..schema.values import decode_part
from .claims import ClaimTable
from .held_claim import PoolPort

#: Interval, s, at which the slots that are taken without a claim are counted anew.
_OTHER_INTERVAL_S = 0.5


class Capacity:
    """The slots of *pool*, some of which *claims* take."""

    def __init__(self, pool: PoolPort, claims: ClaimTable) -> None:
        #: The scheduled queues that the worker serves.
        self.types: tuple[str, ...] = ()
        #: The worker's place among equally specialised ones, where the fleet's settings give it weight.
        self.priority = 0
        #: The slots that the server has confirmed last.
        self.confirmed = -1
        #: Celery's ``worker_prefetch_multiplier``, which determines the maximum number of buffered claims.
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
        """Number of claims in the buffers of custom strategies, which occupy no slot."""
        return self._claims.buffered_count()

    def _full_buffers(self) -> frozenset[str]:
        """Return the buffered claims' types if the buffers are full, so that other workers get the next jobs."""
        if self.buffered < most_buffered(self.prefetch_multiplier, self._pool.size()):
            return frozenset()
        return self._claims.buffered_types().intersection(self.types)

    def _lending(self) -> Lending:
        return lending_of(self._waiting, self.types, self._pool.size()) if self._waiting else NOTHING_LENT

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


#: What stands for all keys: a claim does not say its own. Jobs of other keys go back as well, and come again at once.
_KEYS = "key"


class WithdrawnTypes:
    """What was paused, each with the last fencing number that the server had given by then; false if nothing was.

    A claim that the server grants when a pause is over has a greater number, so nothing here has to end.
    """

    def __init__(self) -> None:
        self._up_to: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._up_to)

    def add(self, what: str, fence: int) -> None:
        """Recall claims up to *fence* of *what*: "type:T" or "key:K", encoded, or "*" for all."""
        self._up_to[_KEYS if keys.parts_of(what)[0] == "key" else decode_part(what)] = fence

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        """Return whether a claim goes back instead of being started."""
        whats = (keys.ALL, keys.type_address(type_), *([_KEYS] if job_record.has_key(job_id) else []))
        return any(int(fence) <= self._up_to.get(what, 0) for what in whats)

    def clear(self) -> None:
        """Forget all: the server counts anew, or has taken the claims from before."""
        self._up_to.clear()


logger = limited_logger(__name__)


class PauseLog:
    """Logs the pauses of everything, of keys, and of the types that a worker serves."""

    def __init__(self) -> None:
        self._revision = 0
        self._known: dict[str, PauseInForce] = {}

    def update(self, reader: Reader, revision: int, types: Collection[str]) -> None:
        """Read the pauses if *revision*, the settings', is new, and log what has changed for a worker of *types*."""
        if revision == self._revision:
            return
        self._revision = revision
        try:
            found = {str(each): each for each in pauses_in_force(reader) if each.kind != "type" or each.name in types}
        except ResponseError as exc:
            logger.warning("The pauses in Redis cannot be read, and are not logged: %s", exc)
            return
        before, self._known = self._known, found
        for name, each in found.items():
            if before.get(name) != each:
                logger.warning(_sentence(sentences.pause_sentence(each)))
        for name in before.keys() - found.keys():
            logger.info("%s %s no longer paused", _sentence(name), before[name].verb)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
