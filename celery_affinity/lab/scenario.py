"""How long each job of a trace had its slot: from its claim until the slot could have the next one.

That is longer than the job ran: the job's way to its worker, and the worker's word that it has ended, take some time.
A replay in which a slot is free at once would drift away from what was recorded.

What an engine is given: a fleet, the jobs that arrive, and the settings.

The rules of a traced job, as a message would say them. A trace has hashes in place of keys.

What an engine returns: which worker ran which job, when.

The profile of a worker: the set of types that it serves.

The fleet of a trace: how many slots serve which types, and whose they are.
"""

from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from ..errors import OptionError
from ..options.keys import Exclusive, Rate, TenantKey, as_explicit
from ..options.merge import Merge
from ..schema.rules_codec import join_rules
from ..schema.values import encode_part
from .trace import EXPIRED, REVOKED, Trace, TracedJob, TracedWorker

#: Longest time, µs, from the end of a job to the next claim of its slot that is taken for the worker's word under way:
#: after a longer one something else kept the next job back. *Known*: the trace says when the worker had the answer to
#: its word, and the job that came with the answer was claimed at that moment.
_LATEST_WORD_US, _LATEST_KNOWN_US = 250_000, 2_000

#: Time, µs, from which jobs have their slots that had them before the trace began: just before all that comes at 0.
HELD_FROM_US = -1

#: Before everything, µs.
_EVER = -(1 << 62)


def slot_time_us(trace: Trace) -> dict[int, int]:
    """Return how long each job that was claimed, and ended, had its slot, µs, by its place in the trace's jobs.

    What was before the trace does not count. A job that was claimed ahead has its slot from when that was free.
    """
    slots: dict[str, int] = {}
    for each in trace.workers:
        slots[each.name] = max(each.slots, slots.get(each.name, 0))
    in_order, at_us = _in_order(trace.jobs)
    claimed: dict[str, list[int]] = {}
    for nth in in_order:
        job = trace.jobs[nth]
        if job.worker in slots and job.took_us is not None:
            claimed.setdefault(job.worker, []).append(nth)
    found: dict[int, int] = {}
    for name, claims in claimed.items():
        _on_one_worker(trace.jobs, claims, at_us, slots[name], found)
    return found


def _in_order(jobs: Sequence[TracedJob]) -> tuple[list[int], Sequence[int]]:
    """Return the jobs that were claimed, in the order of the claims; and the time of the claim, µs, of each job.

    Workers say when a job came to them, the server counts claims: one that was counted before another was earlier.
    """
    numbers = [nth for nth, job in enumerate(jobs) if job.claimed_us is not None]
    numbers.sort(key=lambda nth: jobs[nth].claimed_us or 0)
    numbers.sort(key=lambda nth: jobs[nth].fence or 0)
    at_us, latest_us = array("q", bytes(8 * len(jobs))), -_EVER  # of a million jobs a list would take 40 MB
    for nth in reversed(numbers):
        claimed_us = jobs[nth].claimed_us or 0
        latest_us = latest_us - 1 if claimed_us > latest_us else claimed_us
        at_us[nth] = latest_us if jobs[nth].fence else claimed_us
    return numbers, at_us


def _on_one_worker(
    jobs: Sequence[TracedJob], claims: Sequence[int], at_us: Sequence[int], slots: int, found: dict[int, int]
) -> None:
    free: list[tuple[int, int]] = [(_EVER, -1)] * max(1, slots)  # since when, and the job before; in order
    for nth in claims:
        job, claimed_us = jobs[nth], at_us[nth]
        place = max(0, bisect_right(free, claimed_us, key=lambda slot: slot[0]) - 1)
        is_only_one = place == 0
        free_us, before = free.pop(place)  # the slot that was free last: its release is what claimed the job
        begun_us = max(claimed_us, free_us)
        if free_us <= job.since_us and job.freed_us is None and claimed_us - job.since_us <= _LATEST_WORD_US:
            begun_us = job.since_us  # it found a free slot as it came
        elif job.since_us > free_us:
            begun_us = claimed_us  # it came to a free slot: its own publish brought it, and no end
        elif before >= 0 and is_only_one and _is_one_moment(jobs[before], claimed_us - free_us):
            found[before] += claimed_us - free_us  # the server heard of the end, and gave the job, at once
            begun_us = claimed_us
        freed_us = max(job.freed_us or job.ended_us or 0, begun_us)
        found[nth] = freed_us - max(HELD_FROM_US, begun_us)
        insort(free, (freed_us, nth))


def _is_one_moment(job: TracedJob, later_us: int) -> bool:
    """Return whether a claim that came *later_us* than the end of *job* was brought by the word of that end."""
    return 0 < later_us <= _LATEST_WORD_US if job.freed_us is None else abs(later_us) <= _LATEST_KNOWN_US


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that arrives. *since_us*: when it can be claimed first; *enqueued_us*: the time from which its age counts.

    *took_us*: how long it has the slot, on any worker. *number*: its place in the list of the trace's jobs. *held_by*:
    the worker that had it as the scenario began, by name; one that is not there then does not count. *held_since_us*:
    when that worker claimed it.
    """

    number: int
    type: str
    since_us: int
    enqueued_us: int
    took_us: int
    on_demand: bool = False
    priority: int = 5
    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None
    held_by: str | None = None
    held_since_us: int = -1


@dataclass(frozen=True, slots=True)
class Scenario:
    """*arrivals* are in the order of `since_us`, then of `number`; *settings* are by their name in Redis, as text."""

    workers: tuple[TracedWorker, ...]
    arrivals: tuple[Arrival, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: tuple[str, ...] = ()


def scenario_of(trace: Trace) -> Scenario:
    """Return the scenario of what *trace* recorded. Jobs whose end is not in the trace, or that no worker claimed, take
    the median of their type (of all jobs, if no job of the type ended); those that still ran as it ended run
    beyond its end.

    A job takes as long as it had its slot (`slot_times`). Jobs that waited as the trace began arrive at its beginning,
    those that had been claimed by then just before them, on the workers that had them. Jobs that were revoked, or
    expired, while they waited are left out: they took no slot.
    """
    (medians, of_all), known_us = _medians(trace), slot_time_us(trace)
    arrivals = [
        Arrival(
            number=nth,
            type=job.type,
            since_us=_since_us(job),
            enqueued_us=min(job.enqueued_us, _since_us(job)),
            took_us=known_us[nth] if nth in known_us else _took_us(job, medians.get(job.type, of_all), trace.length_us),
            on_demand=job.on_demand,
            priority=job.priority,
            exclusive=job.exclusive,
            exclusive_limit=job.exclusive_limit,
            rate=job.rate,
            rate_limit=job.rate_limit,
            merge=job.merge,
            tenant=job.tenant,
            held_by=job.worker if _is_held(job) else None,
            held_since_us=job.claimed_us if job.claimed_us is not None and _is_held(job) else -1,
        )
        for nth, job in enumerate(trace.jobs)
        if job.claimed_us is not None or job.outcome not in (REVOKED, EXPIRED)
    ]
    arrivals.sort(key=lambda each: (each.since_us, each.number))
    return Scenario(trace.workers, tuple(arrivals), trace.settings, trace.paused)


def _took_us(job: TracedJob, usual_us: int, ends_us: int) -> int:
    if job.took_us is not None:
        return job.took_us
    return usual_us if job.claimed_us is None else max(usual_us, ends_us + 1 - max(0, job.claimed_us))


def _is_held(job: TracedJob) -> bool:
    """Return whether the job had a slot as the trace began."""
    return job.claimed_us is not None and job.claimed_us < 0


def _since_us(job: TracedJob) -> int:
    return HELD_FROM_US if _is_held(job) else max(0, job.since_us)


def _medians(trace: Trace) -> tuple[dict[str, int], int]:
    """Return the median time in a slot, µs, of each type of which a job ended; and that of all jobs, 0 if none did."""
    of_type: dict[str, list[int]] = {}
    for job in trace.jobs:
        if job.took_us is not None:
            of_type.setdefault(job.type, []).append(job.took_us)
    every = [us for found in of_type.values() for us in found]
    return {type_: median_low(found) for type_, found in of_type.items()}, median_low(every) if every else 0


def rules_text(arrival: Arrival) -> str:
    """Return the field ``rules`` of the job of *arrival*. Raises OptionError, which names the job, for no limit."""
    try:
        parts = [_merge(arrival), _rate(arrival), _exclusive(arrival), _tenant(arrival)]
    except (OptionError, ValueError) as exc:
        raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc
    return join_rules(*parts)


def has_rate_or_window(arrival: Arrival) -> bool:
    """Return whether the job of *arrival* has rules by which it may start at a time when nothing else happens."""
    return not (arrival.rate is arrival.exclusive is arrival.merge is arrival.tenant is None)


def _merge(arrival: Arrival) -> str:
    return "" if arrival.merge is None else Merge("k", keep="last").text(arrival.merge)


def _rate(arrival: Arrival) -> str:
    if arrival.rate is None:
        return ""
    return Rate(as_explicit(arrival.rate_limit or ""), "k").text(arrival.rate)


def _exclusive(arrival: Arrival) -> str:
    """Return the part of an exclusive key. That of a closed one says 1: the setting of limits says 0."""
    if arrival.exclusive is None:
        return ""
    return Exclusive("k", limit=limit_of_key(arrival.exclusive_limit) or 1).text(arrival.exclusive)


def limit_of_key(stated: str | None) -> int:
    """Return how many jobs of an exclusive key may run at a time by what its task states; 0: it is closed."""
    limit = stated or "1"
    if not limit.isdecimal():
        raise OptionError(f"exclusive_limit must be a whole number, 0 or more, got: {limit!r}")
    return int(limit)


def closed_keys(arrivals: Iterable[Arrival]) -> list[str]:
    """Return the words of the setting of limits, as Redis has it, that say which exclusive keys are closed."""
    closed = {each.exclusive for each in arrivals if each.exclusive is not None and each.exclusive_limit == "0"}
    return [f"{encode_part(key)}=0" for key in sorted(closed)]


def _tenant(arrival: Arrival) -> str:
    return "" if arrival.tenant is None else TenantKey("k").text(arrival.tenant)


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A claim. *number*: that of the `Arrival`. *ended_us*: None if it had not ended when the last job was claimed."""

    number: int
    worker: str
    claimed_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """*runs*, in the order of the claims. Arrivals without a run were never claimed: no worker serves their type."""

    scenario: Scenario
    runs: tuple[ScheduledRun, ...]


#: The types, each once, in their order.
WorkerProfile = tuple[str, ...]


def types_of(worker: TracedWorker) -> WorkerProfile:
    return tuple(sorted(set(worker.types)))


class Profiles:
    """The profiles of *workers*, of which several may have one name, one after the other."""

    def __init__(self, workers: Iterable[TracedWorker]) -> None:
        self._rows: dict[str, list[tuple[int, WorkerProfile]]] = {}
        for each in workers:
            self._rows.setdefault(each.name, []).append((each.joined_us, types_of(each)))
        for rows in self._rows.values():
            rows.sort()

    def of(self, run: ScheduledRun) -> WorkerProfile:
        """Return the profile of the worker that ran *run*, when it claimed it."""
        rows = self._rows[run.worker]
        there = (profile for joined_us, profile in reversed(rows) if joined_us <= run.claimed_us)
        return next(there, rows[0][1])


@dataclass(frozen=True)
class Members:
    """Workers that serve the same *types*. *slots*: the largest number that there was at once.

    *workers*: name -> slots, of its last stay. *stays*: whether all were there for the whole trace, under no other
    types or slots: then taking some of them away leaves the others as they were.
    """

    types: tuple[str, ...]
    slots: int
    workers: Mapping[str, int]
    stays: bool


def fleet_of_members(workers: Sequence[TracedWorker]) -> list[Members]:
    """Return the members of each profile, in the order in which the first of them joined."""
    stays = Counter(each.name for each in workers)
    found: dict[tuple[str, ...], list[TracedWorker]] = {}
    for each in workers:
        found.setdefault(types_of(each), []).append(each)
    return [
        Members(
            types,
            _most_at_once(members),
            {each.name: each.slots for each in members},
            all(each.joined_us <= 0 and each.left_us is None and stays[each.name] == 1 for each in members),
        )
        for types, members in found.items()
    ]


def _most_at_once(members: Sequence[TracedWorker]) -> int:
    """Return the largest number of slots at any time. One that leaves as another one joins makes room for that."""
    moves = [(each.joined_us, each.slots) for each in members]
    moves += [(each.left_us, -each.slots) for each in members if each.left_us is not None]
    most = there = 0
    for _, change in sorted(moves):
        there += change
        most = max(most, there)
    return most
