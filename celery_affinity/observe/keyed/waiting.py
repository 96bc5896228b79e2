"""The reasons why a job with a key waits: who holds the key, and which jobs of the key go before it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...clock import SECOND_US
from ...rules.rows import number_of
from ...server.backlogs import Lane
from ...server.reader import Reader
from .. import sentences
from ..claim_order import Order, ahead
from ..job_row import read_jobs
from .facts import Key, holders_of, read_keys

#: Largest number of holders of a key that are looked at.
_MOST_HOLDERS = 100


@dataclass(frozen=True)
class KeyWait:
    """The key of a waiting job. *before*: number of jobs of the key that go before it. *run_s*: the usual run time.

    *held_s*: for how long jobs that hold the key have had it, the longest time first. *now_s*: the server's time.
    """

    key: Key
    before: int
    run_s: float | None
    held_s: list[float]
    now_s: float

    @property
    def overdue_since_s(self) -> float | None:
        """The Unix time by which, going by usual run times, a holder would have ended; None if one may soon."""
        if self.run_s is None or not self.held_s or self.key.has_room or self.key.starts:
            return None
        late_s = min(self.held_s) - self.run_s
        return self.now_s - late_s if late_s > 0 else None

    @property
    def estimate_s(self) -> float | None:
        """A guess at the time until the key is the job's, s; None if nothing is known, or it is closed or overdue."""
        starts = self.key.starts
        if starts:
            return starts.next_s + self.before * starts.period_s / starts.most
        if self.run_s is None or self.key.limit == 0 or self.overdue_since_s is not None:
            return None
        if self.key.limit is None:
            return 0.0
        left_s = 0.0
        if self.key.kept_for is not None:
            left_s = self.run_s + max(0.0, (self.key.kept_until_s or 0.0) - self.now_s)
        elif not self.key.has_room:
            left_s = self.run_s - max((each for each in self.held_s if each <= self.run_s), default=self.run_s)
        return left_s + self.before // self.key.limit * self.run_s


def waiting_for_key(reader: Reader, order: Order, key: str, sublanes: Sequence[Lane], lane: Lane) -> KeyWait:
    """Return why the first job of *lane* waits for *key* (encoded). *sublanes*: those of the key.

    Jobs of another type do not go before it if no live worker serves that type.
    """
    (state,) = read_keys(reader, [key], order.now_us)
    served = [each for each in sublanes if each.type in (lane.type, *order.fits)]
    mine = order.place(lane, lane.enqueued_us, lane.job_id)
    groups = ahead(reader, order, served, mine, lambda each: reader.key("sublane", key, each.type, each.name))
    usual = reader.fields("durations", [lane.type]).get(lane.type)
    run_s = None if usual is None else number_of(usual) / SECOND_US
    held_s = [each.held_s for each in holders_of(reader, key, _MOST_HOLDERS, order.now_us)] if state.held else []
    if state.held > len(held_s):
        held_s.append(0.0)  # of the others nobody knows
    return KeyWait(state, sum(group.jobs for group in groups), run_s, held_s, order.now_us / SECOND_US)


def why_kept_back(reader: Reader, wait: KeyWait, sublanes: Sequence[Lane], lane: Lane) -> str:
    """Return in words why a key keeps a job back. *lane*: that of the job."""
    if not wait.key.has_room:
        return sentences.kept_by_key(wait, lane.type)
    first = next((each.job_id for each in sublanes if (each.type, each.name) == (lane.type, lane.name)), "")
    return sentences.kept_by_key(wait, lane.type, *read_jobs(reader, [first], ("task", "name")))
