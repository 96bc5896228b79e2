"""Determine the order in which pending jobs would be claimed, and count the jobs ahead without reading each one."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge, nsmallest
from itertools import islice
from typing import Annotated

from ..clock import SECOND_US
from ..options.type_names import did_you_mean
from ..policy.score import MICRO, QueueRank, Terms, Weights, overtakes, score
from ..scheduler.cohorts import CohortRow, Cohorts
from ..scheduler.reader import Lane, Reader
from ..schema.keys import ALL, key_address, type_address
from ..schema.rules_codec import StatedKey
from ..schema.values import MAX_COUNT, decode_number, decode_part, decode_text, encode_part
from ..settings import wire
from ..settings.wire import complete_settings, weights_of
from .job_rows import read_jobs
from .keys import stated_keys
from .render import Table, duration_text, mode_text
from .report import Answer, Param, Source, report, rows_of_all, with_cohort_name
from .type_limits import paused_addresses

#: Maximum number of jobs of one lane and one µs that are compared by id. Even two are rare.
_MAX_TIED = 1000


@dataclass(frozen=True)
class ClaimGroup:
    """Jobs of one lane that are before another job. If *kept_back*, their keys block them."""

    type: str
    on_demand: bool
    priority: int
    jobs: int
    kept_back: bool = False


#: Kind of a blocking rule -> the note of the job.
_WAITS = {
    "key": "waits for its key",
    "quota": "waits for its tenant's quota",
    "key or quota": "waits for its key or its tenant's quota",
}


@dataclass(frozen=True)
class NextJob(CohortRow):
    """A pending job in the order of claims.

    - *score*: points.
    - *served*: True if a live worker serves the type.
    - *kept_back*: True if a key blocks the job.
    - *waits_for*: what blocks such a job: "key", "quota" (of its tenant), or "key or quota". Otherwise "".
    - *paused*: True if its type, one of its keys, or all types are paused.
    """

    job_id: str
    task_id: str
    task: str
    type: str
    on_demand: bool
    priority: int
    score: float
    waited_s: float
    served: bool
    kept_back: bool = False
    waits_for: str = ""
    paused: bool = False

    @property
    def note(self) -> str:
        """Why no slot takes the job now, or ""."""
        notes = [] if self.served else ["no live worker serves it"]
        notes += ["paused"] if self.paused else []
        if self.kept_back and not notes:
            notes.append(_WAITS[self.waits_for or "key"])
        return "; ".join(notes)


@dataclass(frozen=True)
class ClaimOrder:
    """The rules at one instant. *fits*: type (encoded) -> fitting slots, without types that no live worker serves.

    *bonus*: maximum points for a job where its hint is held. *head_us*: the largest head start that a job can have;
    0 if no job has a due time. *paused*: addresses of pauses (`pause_address`), set
    only by `upcoming_jobs`.
    """

    now_us: int
    weights: Weights
    fits: Mapping[str, int]
    by_age_alone: bool
    bonus: float = 0.0
    head_us: int = 0
    paused: frozenset[str] = frozenset()

    def is_paused(self, lane: Lane) -> bool:
        """Return True if the type of *lane* or all types are paused."""
        return ALL in self.paused or type_address(lane.type) in self.paused

    def terms(self, lane: Lane, rank_us: int) -> Terms:
        """Return the score terms of a job in *lane*. An unserved type is treated as if one slot served it."""
        fits = self.fits.get(lane.type, 1)
        return score(lane.priority, lane.on_demand, self.now_us - rank_us, fits, self.weights)

    def place(self, lane: Lane, rank_us: int, job_id: str) -> QueueRank:
        total = 0 if self.by_age_alone else self.terms(lane, rank_us).total
        return QueueRank(total, rank_us, job_id)

    def kind(self, lane: Lane) -> tuple[str, int | None]:
        """Return all inputs of the score of a job in *lane*, without its age."""
        return lane.name, self.fits.get(lane.type)

    def passes_until_us(self, lane: Lane, mine: QueueRank) -> int:
        """Return the enqueue time in µs before which a job in *lane* overtakes *mine*, ignoring ties by id.

        All lanes of a kind share that time, because the older of two jobs of a kind never has the lower score. The
        search starts where the lines of the two scores cross.
        """

        def passes(enqueued_us: int) -> bool:
            return overtakes(self.place(lane, enqueued_us, mine.job_id), mine)

        return _first_not(passes, self._crossing_us(lane, mine), 0, self.now_us + 1)

    def _crossing_us(self, lane: Lane, mine: QueueRank) -> int:
        if self.by_age_alone:
            return mine.enqueued_us
        weights = self.weights
        missing = max(0, mine.score - self.terms(lane, self.now_us).total)
        age_us = missing / weights.age
        if lane.on_demand:
            age_us = missing / (weights.age + weights.on_demand_age)
            if age_us > weights.on_demand_age_cap_us:
                age_us = (missing - weights.on_demand_age * weights.on_demand_age_cap_us) / weights.age
        return self.now_us - round(age_us)


def current_order(reader: Reader, types: Sequence[str] | None, now_us: int, settings: Mapping[str, str]) -> ClaimOrder:
    """Return the order of the pending jobs of *types* (encoded, None for all). *settings*: in Redis form."""
    capacity = reader.capacity(types)
    # With "free", a release sees only the slot that it frees, so every type has one slot.
    by_free_slots = settings["rarity"] == "free"
    return ClaimOrder(
        now_us,
        weights_of(settings),
        {type_: 1 if by_free_slots else slots for type_, slots in capacity.items()},
        by_age_alone=settings["priority_percentage"] == "0",
        bonus=wire.bonus_seconds_in(settings),
        head_us=largest_head_us(reader, settings),
    )


def largest_head_us(reader: Reader, settings: Mapping[str, str]) -> int:
    """Return the largest head start in µs that a job can have; 0 if no job has a due time."""
    has_due_times = settings["stretch"] not in ("0", "0.0") or reader.ask_one("exists", reader.key("due_times"))
    return int(settings["target_wait_us"]) if has_due_times else 0


def _first_not(test: Callable[[int], bool], guess: int, low: int, high: int) -> int:
    """Return the first number from *low* on that fails *test*, or *high*.

    *test* passes all numbers below the result and none above. The search gallops in both directions from *guess*, a
    number near the result, then bisects.
    """
    guess = min(max(guess, low), high)
    step = 1
    while guess - step >= low and not test(guess - step):
        step *= 2
    bottom = max(low, guess - step)
    step = 1
    while guess + step < high and test(guess + step):
        step *= 2
    top = min(high, guess + step)
    return bottom + bisect_left(range(bottom, top), True, key=lambda number: not test(number))


def jobs_ahead(
    reader: Reader,
    order: ClaimOrder,
    lanes: Sequence[Lane],
    mine: QueueRank,
    key_of: Callable[[Lane], str] | None = None,
) -> list[ClaimGroup]:
    """Return, for each of *lanes*, the number of jobs before *mine*. Lanes without such jobs are omitted.

    *key_of* returns the Redis key of the relevant jobs of a lane. None: all jobs of the lane.
    """
    key_of = key_of or reader.lane_key
    kinds = {order.kind(lane): lane for lane in lanes}
    until_us_of = {kind: order.passes_until_us(lane, mine) for kind, lane in kinds.items()}
    bounds = [(lane, max(lane.rank_us, until_us_of[order.kind(lane)])) for lane in lanes]
    counts = reader.ask([("zcount", key_of(lane), "-inf", f"({until_us}") for lane, until_us in bounds])
    tied_lanes = [lane for lane, until_us in bounds if until_us == mine.enqueued_us]
    tied = _tied(reader, order, tied_lanes, mine, key_of)
    groups = []
    for lane, count in zip(lanes, counts, strict=True):
        jobs = int(count) + tied.get(lane, 0)
        if jobs:
            priority = order.weights.read(lane.priority)
            groups.append(ClaimGroup(decode_part(lane.type), lane.on_demand, priority, jobs, lane.is_kept_back))
    return groups


def _tied(
    reader: Reader, order: ClaimOrder, lanes: Sequence[Lane], mine: QueueRank, key_of: Callable[[Lane], str]
) -> dict[Lane, int]:
    """Return, by lane, the number of jobs with the enqueue time and score of *mine* and a smaller id."""
    alike = [lane for lane in lanes if order.place(lane, mine.enqueued_us, "").score == mine.score]
    at_us = mine.enqueued_us
    replies = reader.ask([("zrangebyscore", key_of(lane), at_us, at_us, 0, _MAX_TIED) for lane in alike])
    return {
        lane: sum(decode_text(job_id) < mine.job_id for job_id in ids) for lane, ids in zip(alike, replies, strict=True)
    }


def next_jobs(reader: Reader, types: Sequence[str] | None, limit: int) -> list[NextJob]:
    """Return the first *limit* pending jobs of *types* (encoded, None for all) in the current order of claims."""
    order = current_order(reader, types, reader.now_us(), complete_settings(reader.hash("settings")))
    return upcoming_jobs(reader, order, [*reader.lanes(types), *reader.kept_lanes(types)], limit)


def upcoming_jobs(reader: Reader, order: ClaimOrder, lanes: Sequence[Lane], limit: int) -> list[NextJob]:
    """Return the first *limit* jobs of *lanes* in the order of claims.

    Jobs blocked by keys come after all others, then jobs of paused types, and jobs of unserved types last.
    """
    order = replace(order, paused=paused_addresses(reader))
    best = _first(order, lanes, limit)
    heads = reader.ask([("zrange", reader.lane_key(lane), 0, limit - 1, False, True) for lane in best])
    jobs = [
        (lane, decode_number(rank_us), decode_text(job_id))
        for lane, members in zip(best, heads, strict=True)
        for job_id, rank_us in members
    ]
    jobs.sort(key=lambda job: _rank(order, *job))
    rows = read_jobs(reader, [job_id for _, _, job_id in jobs[:limit]], ("task", "name", "rules", "enqueued"))
    keys_of = [stated_keys(row.rules) for row in rows]
    return [
        NextJob(
            job_id=job_id,
            task_id=row.task_id,
            task=row.task,
            type=decode_part(lane.type),
            on_demand=lane.on_demand,
            priority=order.weights.read(lane.priority),
            score=order.terms(lane, rank_us).total / MICRO,
            waited_s=max(0, order.now_us - (row.enqueued_us or rank_us)) / SECOND_US,
            served=lane.type in order.fits,
            kept_back=lane.is_kept_back,
            waits_for=_waits_for(keys) if lane.is_kept_back else "",
            paused=order.is_paused(lane) or any(key_address(key.key) in order.paused for key in keys),
        )
        for (lane, rank_us, job_id), row, keys in zip(jobs, rows, keys_of, strict=False)
    ]


def _waits_for(keys: Sequence[StatedKey]) -> str:
    kinds = {"quota" if key.is_of_tenant else "key" for key in keys}
    return " or ".join(sorted(kinds)) or "key"


def _first(order: ClaimOrder, lanes: Iterable[Lane], limit: int) -> list[Lane]:
    """Return the *limit* lanes with the first heads.

    Only some heads get a score, because there may be thousands of lanes. Lanes of one kind are ordered by the age of
    their heads, then by the id.
    """
    alike: dict[tuple[str, int | None, bool, bool], list[Lane]] = {}
    for lane in lanes:
        alike.setdefault((*order.kind(lane), lane.is_kept_back, order.is_paused(lane)), []).append(lane)
    oldest = [nsmallest(limit, of_kind) for of_kind in alike.values()]
    return list(islice(merge(*oldest, key=lambda lane: _rank(order, lane, lane.rank_us, lane.job_id)), limit))


def _rank(order: ClaimOrder, lane: Lane, rank_us: int, job_id: str) -> tuple[bool, bool, bool, int, int, str]:
    place = order.place(lane, rank_us, job_id)
    return (
        lane.type not in order.fits,
        order.is_paused(lane),
        lane.is_kept_back,
        -place.score,
        place.enqueued_us,
        place.job_id,
    )


def next_jobs_of_all(
    fleet: Cohorts, types: Iterable[str] | None, limit: int
) -> tuple[list[NextJob], Mapping[str, str]]:
    """Return the next pending jobs of *types*, or of all types, and the reasons why cohorts are down.

    Cohorts claim separately. The merged jobs are ordered by score.
    """
    names = None if types is None else [encode_part(type_) for type_ in types]
    replies = fleet.each(lambda scheduler: next_jobs(scheduler.reader, names, limit))
    if not replies.is_split:
        return rows_of_all(replies), {}
    lists = [with_cohort_name(jobs, name) for name, jobs in replies.answers.items()]
    return list(islice(merge(*lists, key=lambda job: -job.score), limit)), replies.down


def served_by(fleet: Cohorts) -> set[str]:
    """Return the types that live workers serve."""
    replies = fleet.each(lambda scheduler: list(scheduler.reader.capacity()))
    return {decode_part(type_) for types in replies.answers.values() for type_ in types}


#: Pending jobs, the next one first.
NEXT_JOBS = Table[NextJob](
    {
        "type": "type",
        "priority": "priority",
        "mode": lambda job: mode_text(job.on_demand),
        "score": lambda job: f"{job.score:,.1f}" if job.served else None,
        "waited": lambda job: duration_text(job.waited_s),
        "task": "task",
        "task id": "task_id",
        "": "note",
    },
    is_red=lambda job: not job.served,
    is_numbered=True,
)


Types = Annotated[tuple[str, ...], Param(is_argument=True)]
Limit = Annotated[int, Param("Maximum number to show.", min_value=1, max_value=MAX_COUNT)]


@report("pending", text=NEXT_JOBS.text)
def pending(source: Source, types: Types = (), limit: Limit = 20) -> Answer[list[NextJob]]:
    """List the next pending jobs, in the order in which they would be claimed now."""
    jobs, down = next_jobs_of_all(source.fleet, types or None, limit)
    if jobs or not types:
        return Answer(jobs, down, if_empty="nothing is pending")
    served = served_by(source.fleet)
    of_unserved = {type_: f", which no live worker serves{did_you_mean(type_, served)}" for type_ in {*types} - served}
    lines = [f"nothing is pending of type {type_!r}{of_unserved.get(type_, '')}" for type_ in types]
    return Answer(jobs, down, if_empty="\n".join(lines))
