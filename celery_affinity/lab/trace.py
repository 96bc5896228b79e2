"""A trace: what a fleet did for a while, as a record that can be given away.

It has hashes in place of keys, and no arguments. Times are µs since the beginning of the trace. A job that was pending
before the trace began has a time below 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The form of a trace, in its header.
SCHEMA = "celery-affinity-trace/1"

#: How a claim ended, as the worker told it. `REVOKED`, `EXPIRED`: also of a job that ended so while it waited, without
#: a claim. `RETURNED`: the job waited again. `RUNNING`: the claim had not ended as the trace did. `PENDING`: the job
#: still waited then.
DONE, FAILED, REVOKED, EXPIRED, REJECTED, RETURNED, RUNNING, PENDING = (
    "done",
    "failed",
    "revoked",
    "expired",
    "rejected",
    "returned",
    "running",
    "pending",
)

OUTCOMES = (DONE, FAILED, REVOKED, EXPIRED, REJECTED, RETURNED, RUNNING, PENDING)


@dataclass(frozen=True, slots=True)
class TracedWorker:
    """A worker, from its join, or the beginning of the trace, until it left (None: it did not).

    One that came back, or got other types or slots, is a further one of the same name.
    """

    name: str
    types: tuple[str, ...]
    slots: int
    joined_us: int = 0
    left_us: int | None = None


@dataclass(frozen=True, slots=True)
class TracedJob:
    """One stay of a job in the queue, and the claim that ended it. A job that came back has a further one.

    *enqueued_us*: the time from which its age counts. *since_us*: the time from which it could be claimed: of a job
    that came back, when it came back. *claimed_us*, *started_us*, *ended_us*: None if that did not happen within the
    trace. *freed_us*: when the server heard of the end, or when the worker knew that it had; None if nobody wrote it
    down. *fence*: orders claims; None without a claim. *exclusive*, *rate*, *merge*, *tenant*: hashes; the limits of
    the first two as the task says them (`"3"`, `"10/m"`), or as `affinity_limits` overrides them.
    """

    type: str
    enqueued_us: int
    since_us: int
    on_demand: bool = False
    priority: int = 5
    fence: int | None = None
    claimed_us: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    freed_us: int | None = None
    outcome: str = PENDING
    worker: str | None = None
    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None

    @property
    def took_us(self) -> int | None:
        """Return how long it had the slot; None if its end, or its start, is not in the trace."""
        begun_us = self.claimed_us if self.started_us is None else self.started_us
        return None if begun_us is None or self.ended_us is None else max(0, self.ended_us - begun_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """A record of *length_us*. *settings*: those in force, by their name in Redis (`rules.shared_settings`), as text.

    *paused*: types that were paused as it began; ``*``: all types. *versions*: of this package and of the server, by
    name. *lost*: number of claims that workers could not write down.
    """

    length_us: int
    workers: tuple[TracedWorker, ...]
    jobs: tuple[TracedJob, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    paused: tuple[str, ...] = ()
    recorded_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    lost: int = 0
