"""What is said of a pending job: its score, the jobs before it, slots that fit, rules that keep it back, a guess.

`why_it_waits` finds it out.
"""

from dataclasses import dataclass, field

from .claim_order import Group
from .keyed.turns import Turn
from .keyed.waiting import KeyWait
from .overdue_slots import OverdueJob


@dataclass(frozen=True)
class Points:
    """The terms of a score, in points. *slots_that_fit*: the divisor of rarity; 0 if no live worker serves the type."""

    priority: float
    age: float
    rarity: float
    on_demand: float
    total: float
    slots_that_fit: int


@dataclass(frozen=True)
class SlotsOfTypes:
    """The slots of the workers that serve exactly *types*. *free* leaves out a draining worker, even an idle one."""

    types: list[str]
    workers: int
    slots: int
    free: int


@dataclass(frozen=True)
class Block:
    """A rule that keeps a job pending. *why*: the reason in words.

    *rule*: "type" (no live worker serves it), "rate limit", "slots", "key", "tenant", "pause", "type limit" or
    "reserve".
    *is_closed*: the limit of the type is 0.
    """

    rule: str
    why: str
    is_closed: bool = False


@dataclass(frozen=True)
class NotBefore:
    """The Unix time before which a job cannot start, and what happens then, in words."""

    at_s: float
    why: str


@dataclass(frozen=True)
class Waiting:
    """The reasons why a pending job waits.

    *rank_in_type*, *rank*: the job's place among the jobs of its type, and among all jobs that the fitting slots could
    take; 1 is next. Jobs of other types that are paused have no place, nor have jobs that keys keep back, unless this
    job is one of them. *ahead*: the jobs before it, by type, mode and priority. *blocked_by*: all rules that keep the
    job pending; empty if a slot has just become free. *bound_s*: only jobs that are published less than this time after
    the job can pass it; no new job can pass it from *passed_until_s* (Unix time) on. Both are None while a rule keeps
    the job back. *estimate_s*: an estimate of the remaining wait, from recent run times; None if nothing is known.
    *not_before*: the time before which the job cannot start, if a rule has one: the end of a pause, or the time of the
    retry that its key is kept for. *overdue_since_s*: the Unix time by which a job that holds the key would have ended,
    going by usual run times. *key*: the key that the job waits for, of two the rate first; None for a job without a
    key. *kept_back*: whether a key keeps the job back; if not, the job may start while its keys have room. *overdue*:
    jobs that have taken slots that fit for far longer than usual. *turn*: that of its tenant, if tenants go by shares:
    then nothing bounds how many jobs pass this one, and *rank* is by age. *goes_first*: whether it goes before all
    others, since its tenant has less than its minimum; *passing*: number of such jobs of other tenants that go before
    it, and are not in *ahead*.
    """

    score: Points
    rank_in_type: int
    rank: int
    ahead: list[Group]
    slots: list[SlotsOfTypes]
    blocked_by: list[Block]
    bound_s: float | None
    passed_until_s: float | None
    estimate_s: float | None
    key: KeyWait | None = None
    kept_back: bool = False
    not_before: NotBefore | None = None
    overdue_since_s: float | None = None
    overdue: list[OverdueJob] = field(default_factory=list)
    turn: Turn | None = None
    goes_first: bool = False
    passing: int = 0

    @property
    def is_paused(self) -> bool:
        return any(each.rule == "pause" for each in self.blocked_by)
