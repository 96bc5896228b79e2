"""What an engine is given: a fleet, the jobs that arrive, and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

from .slot_times import HELD_FROM_US, held_us
from .trace import EXPIRED, REVOKED, Trace, TracedJob, TracedWorker


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
    (medians, of_all), known_us = _medians(trace), held_us(trace)
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
