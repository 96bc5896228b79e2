"""A claim, from the row that its worker made of it (`membership.records`), and what the arrow ``record`` added to that.

A worker tells times by a guess of the server's clock, which is off by hundreds of microseconds: as long as a busy
fleet takes from one decision to the next. So the server's own times count, of the claim and of the moment at which the
slot was free, wherever they are known. Those of one release are the same, as they were for the server: it ends jobs,
and claims the ones that its reply brings, at one moment.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import SECOND_US
from ..server import recorded_claims
from ..server.recorded_claims import ClaimRow
from ..server.recordings import Page
from .hashing import NO_RULES, Hashes, Keyed
from .trace import OUTCOMES

#: Lines that are told of a plain claim whose times were asked for: the time of the claim, and that of its end. Of a
#: claim without a lane one line is told.
_LINES_OF_PLAIN = 2

#: Longest time, µs, by which the server's time of a claim, or of an end, is later than the worker knew of it: one that
#: is later still is that of another claim of the job.
_LATEST_US = SECOND_US


@dataclass(slots=True)
class RecordedClaim:
    """Times are those of the server's clock, µs.

    *brought_by*, *release*: the releases of its worker that brought it, and that told its end, by their numbers; 0 for
    none.
    """

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
    brought_by: int = 0
    release: int = 0

    def hear(self, released_us: Mapping[int, int]) -> None:
        """Have the times of the releases of its worker, and be in order."""
        self.claimed_us = released_us.get(self.brought_by, self.claimed_us)
        if self.freed_us is not None:
            self.freed_us = released_us.get(self.release, self.freed_us)
        self.put_in_order()

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


class RowReader:
    """Reads the rows of a *page* in their order, each with what the server has added to it.

    *released_us*: gets the times of releases, by their numbers.
    """

    def __init__(self, page: Page, worker: str, hashes: Hashes, released_us: dict[int, int]) -> None:
        """Raises ValueError if nobody can read the page."""
        self._rows = recorded_claims.read(page.claims)
        self._worker, self._hashes, self._released_us = worker, hashes, released_us
        plain = _LINES_OF_PLAIN * sum(is_asked for _, is_asked in self._rows)
        self._of_plain, self._of_others = iter(page.told[:plain]), iter(page.told[plain:])

    def claims(self) -> list[RecordedClaim]:
        """Return the claim of each row. Raises ValueError."""
        return [self._claim(row, is_asked=is_asked) for row, is_asked in self._rows]

    def _claim(self, row: ClaimRow, *, is_asked: bool) -> RecordedClaim:
        job_id, fence, (type_, lane, outcome), enqueued_us, arrived, started, ended, freed, brought_by, release = row
        if outcome not in OUTCOMES:
            raise ValueError(outcome)

        def told(passed: int | None) -> int | None:
            return None if passed is None else enqueued_us + passed

        known = self._added(lane, is_asked=is_asked)
        claimed_us, freed_us = _not_later(known.claimed_us, enqueued_us + arrived), told(freed)
        self._hear_of(brought_by, known.claimed_us and claimed_us)
        if freed_us is not None and (known.ended_us or 0) >= claimed_us:
            freed_us = _not_later(known.ended_us, freed_us)
            self._hear_of(release, freed_us)
        return RecordedClaim(
            int(fence),
            job_id,
            type_,
            enqueued_us,
            claimed_us,
            told(started),
            told(ended),
            freed_us,
            outcome,
            self._worker,
            sys.intern(known.lane),
            self._hashes.keyed(known.rules, known.task) if known.rules else NO_RULES,
            brought_by,
            release,
        )

    def _added(self, lane: str, *, is_asked: bool) -> "_Added":
        """Return what the server added to a row with this *lane*."""
        if lane:
            claimed, ended = (next(self._of_plain, "") if is_asked else "" for _ in range(_LINES_OF_PLAIN))
            return _Added(lane, _us(claimed), _us(ended))
        lane, claimed, ended, rest = (*next(self._of_others, "").split(" ", 3), "", "", "", "")[:4]
        rules, _, task = rest.partition("\t")
        return _Added(lane, _us(claimed), _us(ended), rules, task)

    def _hear_of(self, release: int, at_us: int | None) -> None:
        if release and at_us is not None:
            self._released_us[release] = at_us


class _Added(NamedTuple):
    """What the arrow added; None for a time that the row of the job has not, or has of another claim."""

    lane: str
    claimed_us: int | None
    ended_us: int | None
    rules: str = ""
    task: str = ""


def _us(word: str) -> int | None:
    return int(word) if word else None


def _not_later(its_us: int | None, told_us: int) -> int:
    """Return the server's time, or *told_us*, the worker's, if there is none, or that is of another claim."""
    return told_us if its_us is None or its_us > told_us + _LATEST_US else its_us
