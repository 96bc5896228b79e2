"""A claim, from the row that its worker made of it (`membership.records`), and what the arrow ``record`` added to that.

A worker tells times by a guess of the server's clock, which is off by hundreds of microseconds: as long as a busy
fleet takes from one decision to the next. So the server's own times count, of the claim and of the moment at which the
slot was free, wherever the job's row still has them. Two of one call are then the same, as they were for the server.
"""

import sys
from dataclasses import dataclass
from typing import NamedTuple

from ..rules.encoding import decode
from .hashing import NO_RULES, Hashes, Keyed
from .trace import OUTCOMES

#: Number of words of a row as its worker made it, with the lane and the times of claim and end that follow.
_WORDS = 13


@dataclass(slots=True)
class RecordedClaim:
    """Times are those of the server's clock, µs."""

    fence: int
    job_id: str
    type: str
    enqueued_us: int
    claimed_us: int
    started_us: int | None
    ended_us: int | None
    freed_us: int | None
    outcome: str
    worker: str
    lane: str
    keyed: Keyed

    def put_in_order(self) -> None:
        """Have its times be in order, whatever the worker guessed, and if the server's clock has stepped."""
        self.claimed_us = max(self.claimed_us, self.enqueued_us)
        latest_us = sys.maxsize
        if self.freed_us is not None:
            latest_us = self.freed_us = max(self.freed_us, self.claimed_us)
        if self.started_us is not None:
            self.started_us = min(max(self.started_us, self.claimed_us), latest_us)
        if self.ended_us is not None:
            self.ended_us = min(max(self.ended_us, self.started_us or self.claimed_us), latest_us)


def of_row(row: str, worker: str, hashes: Hashes) -> RecordedClaim:
    """Return the claim of *worker* that *row* tells of. Raises ValueError, or IndexError, if nobody can read it."""
    words = row.split(" ", _WORDS)
    job_id, fence, lane, type_, enqueued, outcome, arrived, started, ended, freed, *further = words
    if outcome not in OUTCOMES:
        raise ValueError(outcome)
    known, enqueued_us = _known(further), int(enqueued)

    def told(passed: str) -> int | None:
        return enqueued_us + int(passed) if passed else None

    claim = RecordedClaim(
        int(fence),
        job_id,
        sys.intern(decode(type_)),
        enqueued_us,
        int(known.claimed or enqueued_us + int(arrived)),
        told(started),
        told(ended),
        known.freed_us or told(freed) if freed else None,
        sys.intern(outcome),
        worker,
        sys.intern(lane or known.lane),
        hashes.keyed(known.rules, known.task) if known.rules else NO_RULES,
    )
    claim.put_in_order()
    return claim


class _Known(NamedTuple):
    """What the arrow added: "" for what the row of the job did not say, or did not say of this claim."""

    lane: str
    claimed: str
    ended: str
    rules: str
    task: str

    @property
    def freed_us(self) -> int | None:
        """Return when the server heard of the end; None if it did not, or if that was the end of an earlier claim."""
        is_its_own = self.claimed and self.ended and int(self.ended) >= int(self.claimed)
        return int(self.ended) if is_its_own else None


def _known(further: list[str]) -> _Known:
    lane, claimed, ended, rest = (*further, "", "", "", "")[:4]
    rules, _, task = rest.partition("\t")
    return _Known(lane, claimed, ended, rules, task)
