"""What an engine is given: a fleet, the jobs that arrive, and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Return the scenario of what *trace* recorded.

    Jobs whose end is not in the trace, or that no worker claimed, take the median of their type (of all jobs, if no job
    of the type ended).
    """
    raise NotImplementedError
