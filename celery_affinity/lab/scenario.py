"""What an engine is given: a fleet, the jobs that arrive, and the settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from .trace import Trace, TracedWorker


@dataclass(frozen=True)
class Arrival:
    """A job that arrives. *since_us*: when it can be claimed first; *enqueued_us*: the time from which its age counts.

    *took_us*: how long it has the slot, on any worker. *number*: its place in the list of the trace's jobs.
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


@dataclass(frozen=True)
class Scenario:
    """*arrivals* are in the order of `since_us`, then of `number`; *settings* are by their name in Redis, as text."""

    workers: tuple[TracedWorker, ...]
    arrivals: tuple[Arrival, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: tuple[str, ...] = ()


def of_trace(trace: Trace) -> Scenario:
    """Return the scenario of what *trace* recorded. Jobs whose end is not in the trace, or that no worker claimed, take the
    median of their type (of all jobs, if no job of the type ended)."""
    by_type: dict[str, list[int]] = {}
    for job in trace.jobs:
        if job.took_us is not None:
            by_type.setdefault(job.type, []).append(job.took_us)
    of_all = _median(each for took in by_type.values() for each in took)
    usual = {type_: _median(took) for type_, took in by_type.items()}
    arrivals = (
        Arrival(
            number=number,
            type=job.type,
            since_us=job.since_us,
            enqueued_us=job.enqueued_us,
            took_us=usual.get(job.type, of_all) if job.took_us is None else job.took_us,
            on_demand=job.on_demand,
            priority=job.priority,
            exclusive=job.exclusive,
            exclusive_limit=job.exclusive_limit,
            rate=job.rate,
            rate_limit=job.rate_limit,
            merge=job.merge,
            tenant=job.tenant,
        )
        for number, job in enumerate(trace.jobs)
    )
    ordered = tuple(sorted(arrivals, key=lambda each: (each.since_us, each.number)))
    return Scenario(trace.workers, ordered, trace.settings, trace.paused)


def _median(values: Iterable[int]) -> int:
    found = list(values)
    return round(median(found)) if found else 0
