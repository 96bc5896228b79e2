"""The input and output of an engine: the scenario of a trace (fleet, arrivals, settings), and the schedule.

The slot time of a job lasts from its claim until the slot can have the next job. That is longer than its run, because
delivery and report take time. A replay without these delays would drift from the record.
"""

from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from statistics import median_low

from ..errors import OptionError
from ..options.keys import Exclusive, Rate, TenantKey, as_explicit, is_rate
from ..options.merge import Merge
from ..schema.rules_codec import join_rules
from ..schema.values import encode_part
from .trace import DONE, EXPIRED, PENDING, REVOKED, RUNNING, JobOptions, Trace, TracedJob, TracedWorker, options_of

#: Maximum time in µs from a job's end to the next claim of its slot that is taken for the report's delay: after a
#: longer time, something else blocked the next job. The second limit applies if the trace has the time at which the
#: worker had the reply: the job in the reply was claimed at that time.
_MAX_REPORT_US, _MAX_CONFIRMED_US = 250_000, 2_000
#: Time in µs at which jobs claimed before the trace get their slots: just before the first arrivals at 0.
HELD_FROM_US = -1
#: A time in µs before all others.
_LONG_AGO_US = -(1 << 62)


def slot_time_us(trace: Trace) -> dict[int, int]:
    """Return the slot time in µs of each job that was claimed and ended, by its index in the trace's jobs.

    Time before the trace is not counted. The slot time of a prefetched job begins when its slot becomes free.
    """
    slots: dict[str, int] = {}
    for worker in trace.workers:
        slots[worker.name] = max(worker.slots, slots.get(worker.name, 0))
    claim_order, at_us = _claims_in_order(trace.jobs)
    claimed: dict[str, list[int]] = {}
    for index in claim_order:
        job = trace.jobs[index]
        if job.worker in slots and job.took_us is not None:
            claimed.setdefault(job.worker, []).append(index)
    slot_times_us: dict[int, int] = {}
    for name, claims in claimed.items():
        _add_times_of_worker(trace.jobs, claims, at_us, slots[name], slot_times_us)
    return slot_times_us


def _claims_in_order(jobs: Sequence[TracedJob]) -> tuple[list[int], Sequence[int]]:
    """Return the indexes of the claimed jobs in claim order, and the claim time in µs of each job.

    Workers measure when a job arrived, and the server numbers claims: a claim with a lower token was earlier.
    """
    indexes = [index for index, job in enumerate(jobs) if job.claimed_us is not None]
    indexes.sort(key=lambda index: jobs[index].claimed_us or 0)
    indexes.sort(key=lambda index: jobs[index].fence or 0)
    at_us, latest_us = array("q", bytes(8 * len(jobs))), -_LONG_AGO_US  # for a million jobs a list would take 40 MB
    for index in reversed(indexes):
        claimed_us = jobs[index].claimed_us or 0
        latest_us = latest_us - 1 if claimed_us > latest_us else claimed_us
        at_us[index] = latest_us if jobs[index].fence else claimed_us
    return indexes, at_us


def _add_times_of_worker(
    jobs: Sequence[TracedJob], claims: Sequence[int], at_us: Sequence[int], slots: int, slot_times_us: dict[int, int]
) -> None:
    free: list[tuple[int, int]] = [(_LONG_AGO_US, -1)] * max(1, slots)  # sorted: free since, and the previous job
    for index in claims:
        job, claimed_us = jobs[index], at_us[index]
        position = max(0, bisect_right(free, claimed_us, key=lambda slot: slot[0]) - 1)
        is_only_one = position == 0
        free_us, before = free.pop(position)  # the last slot to become free: its release claimed the job
        began_us = max(claimed_us, free_us)
        if free_us <= job.since_us and job.freed_us is None and claimed_us - job.since_us <= _MAX_REPORT_US:
            began_us = job.since_us  # it had a free slot on arrival
        elif job.since_us > free_us:
            began_us = claimed_us  # it had a free slot on arrival: its publish claimed it, and not a release
        elif before >= 0 and is_only_one and _is_same_event(jobs[before], claimed_us - free_us):
            slot_times_us[before] += claimed_us - free_us  # the release and the claim were one invocation
            began_us = claimed_us
        freed_us = max(job.freed_us or job.ended_us or 0, began_us)
        slot_times_us[index] = freed_us - max(HELD_FROM_US, began_us)
        insort(free, (freed_us, index))


def _is_same_event(job: TracedJob, later_us: int) -> bool:
    """True if a claim *later_us* after the end of *job* was in the reply to the release."""
    return 0 < later_us <= _MAX_REPORT_US if job.freed_us is None else abs(later_us) <= _MAX_CONFIRMED_US


@dataclass(frozen=True, slots=True)
class Arrival(JobOptions):
    number: int  #: index in the trace's jobs
    type: str
    since_us: int  #: earliest claim time
    enqueued_us: int  #: start of the job's age
    took_us: int  #: slot time, on any worker
    held_by: str | None = None  #: name of the worker that had it when the scenario began; ignored if that is missing
    held_since_us: int = -1  #: time of that worker's claim
    is_learned: bool = True  #: True if its time counts as a run time of its task


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of an engine. *arrivals*: sorted by `since_us`, `number`. *settings*: Redis name -> string."""

    workers: tuple[TracedWorker, ...]
    arrivals: tuple[Arrival, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: tuple[str, ...] = ()


def scenario_of(trace: Trace) -> Scenario:
    """Return the scenario that *trace* recorded.

    A job takes its slot time (`slot_time_us`). Without a recorded claim or end it takes the median of its type, or of
    all jobs if no job of the type ended; jobs that ran at the end of the trace run beyond it. Jobs that waited when the
    trace began arrive at its beginning; jobs claimed before arrive just before that, on their workers. Jobs that were
    revoked or expired while waiting are left out, because they took no slot.
    """
    slot_times_us, usual_us = slot_time_us(trace), _medians(trace)
    arrivals = []
    for index, job in enumerate(trace.jobs):
        if job.claimed_us is None and job.outcome in (REVOKED, EXPIRED):
            continue
        held_since_us = -1 if job.claimed_us is None else min(-1, job.claimed_us)
        is_held = job.claimed_us is not None and job.claimed_us < 0
        since_us = HELD_FROM_US if is_held else max(0, job.since_us)
        took_us = slot_times_us.get(index, job.took_us)
        if took_us is None:
            took_us = usual_us.get(job.type, usual_us[None])
            if job.claimed_us is not None:
                took_us = max(took_us, trace.length_us + 1 - max(0, job.claimed_us))
        held_by, enqueued_us = job.worker if is_held else None, min(job.enqueued_us, since_us)
        # Failed and stopped runs are no run times, and of a job that was held the beginning is not in its slot time.
        is_learned = not is_held and job.outcome in (DONE, RUNNING, PENDING)
        facts = index, job.type, since_us, enqueued_us, took_us, held_by, held_since_us, is_learned
        arrivals.append(Arrival(*facts, **options_of(job)))
    arrivals.sort(key=lambda arrival: (arrival.since_us, arrival.number))
    return Scenario(trace.workers, tuple(arrivals), trace.settings, trace.paused)


def _medians(trace: Trace) -> dict[str | None, int]:
    """Return the median slot time in µs per type with an ended job. None -> the median of all jobs, or 0."""
    by_type: dict[str | None, list[int]] = {None: []}
    for job in trace.jobs:
        if job.took_us is not None:
            by_type.setdefault(job.type, []).append(job.took_us)
            by_type[None].append(job.took_us)
    return {type_: median_low(times or [0]) for type_, times in by_type.items()}


def rules_text(arrival: Arrival) -> str:
    """Return the field ``rules`` of the job of *arrival*. Raises OptionError, which names the job, if it is invalid."""
    job = arrival
    try:
        return _rules_text(job.merge, job.rate, job.rate_limit, job.exclusive, job.exclusive_limit, job.tenant)
    except (OptionError, ValueError) as exc:
        raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc


@lru_cache(maxsize=100_000)
def _rules_text(
    merge: str | None,
    rate: str | None,
    rate_limit: str | None,
    exclusive: str | None,
    exclusive_limit: str | None,
    tenant: str | None,
) -> str:
    limit, explicit_rate = exclusive_limit or "1", as_explicit(rate_limit or "")
    if exclusive is not None and not limit.isdecimal():
        raise OptionError(f"exclusive_limit must be a whole number, 0 or more, got: {limit!r}")
    if rate is not None and not is_rate(explicit_rate):
        raise OptionError(f"rate_limit must be a whole number above 0 for each s, m or h, got: {explicit_rate!r}")
    return join_rules(
        "" if merge is None else Merge("k", keep="last").text(merge),
        "" if rate is None else Rate(explicit_rate, "k").text(rate),
        # The rules of a closed key have the limit 1, because the setting limits it to 0: see `closed_keys`.
        "" if exclusive is None else Exclusive("k", limit=int(limit) or 1).text(exclusive),
        "" if tenant is None else TenantKey("k").text(tenant),
    )


def closed_keys(arrivals: Iterable[Arrival]) -> list[str]:
    """Return the entries of the setting `limits`, in Redis format, that close exclusive keys."""
    closed = {job.exclusive for job in arrivals if job.exclusive is not None and job.exclusive_limit == "0"}
    return [f"{encode_part(key)}=0" for key in sorted(closed)]


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    number: int  #: number of the `Arrival`
    worker: str
    claimed_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """*runs* in claim order. Arrivals without a run were never claimed: no worker serves their type.

    *head_starts*: number of a job -> its head start in µs, if it is above 0.
    """

    scenario: Scenario
    runs: tuple[ScheduledRun, ...]
    head_starts: Mapping[int, int] = field(default_factory=dict)


#: The types of a worker, sorted, without duplicates.
WorkerProfile = tuple[str, ...]


def types_of(worker: TracedWorker) -> WorkerProfile:
    return tuple(sorted(set(worker.types)))


class Profiles:
    """The profiles of *workers*. Several workers can have the same name one after the other."""

    def __init__(self, workers: Iterable[TracedWorker]) -> None:
        self._rows: dict[str, list[tuple[int, WorkerProfile]]] = {}
        for worker in workers:
            self._rows.setdefault(worker.name, []).append((worker.joined_us, types_of(worker)))
        for rows in self._rows.values():
            rows.sort()

    def of(self, run: ScheduledRun) -> WorkerProfile:
        """Return the profile of the worker of *run* at the time of the claim."""
        rows = self._rows[run.worker]
        joined = (profile for joined_us, profile in reversed(rows) if joined_us <= run.claimed_us)
        return next(joined, rows[0][1])


@dataclass(frozen=True)
class Members:
    """Workers that serve the same *types*."""

    types: tuple[str, ...]
    slots: int  #: maximum number at the same time
    workers: Mapping[str, int]  #: name -> slots in the worker's last stay
    stays: bool  #: True if all stayed for the whole trace without changes: removing some leaves the others unchanged


def fleet_of_members(workers: Sequence[TracedWorker]) -> list[Members]:
    """Return the members per profile, in the order in which the first of them joined."""
    stays = Counter(worker.name for worker in workers)
    members_by_types: dict[tuple[str, ...], list[TracedWorker]] = {}
    for worker in workers:
        members_by_types.setdefault(types_of(worker), []).append(worker)
    fleet = []
    for types, members in members_by_types.items():
        changes = [(member.joined_us, member.slots) for member in members]
        changes += [(member.left_us, -member.slots) for member in members if member.left_us is not None]
        unchanged = (w.joined_us <= 0 and w.left_us is None and stays[w.name] == 1 for w in members)
        slots_by_name = {member.name: member.slots for member in members}
        fleet.append(Members(types, max_at_once(changes), slots_by_name, all(unchanged)))
    return fleet


def max_at_once(changes: Iterable[tuple[int, int]]) -> int:
    """Return the maximum of the sum of *changes* (time, change). At the same time, decreases come before increases."""
    return max(accumulate((change for _, change in sorted(changes)), initial=0))
