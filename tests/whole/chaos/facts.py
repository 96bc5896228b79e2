"""What the ledger tells: jobs with their runs, times in which something was wrong, pauses and limits."""

from dataclasses import dataclass, field
from math import inf

#: How a run may end that is to stop, by itself or by force.
STOPPED_ENDS = ("", "Preempted", "SystemExit", "GreenletExit")


@dataclass(slots=True)
class Run:
    """One start of a job, and the end if there was one."""

    id: str
    pid: int
    worker: int
    start: float
    end: float = inf
    outcome: str = ""
    keys: list[str] = field(default_factory=list)
    fence: int = 0
    preemptible: bool = False
    asked: float = inf
    """When its task saw that it was to stop."""
    priority: int = 0
    mode: str = "queued"
    calls: tuple[str, ...] = ()
    """Of a run of merged calls: their tokens, the first call's first."""
    given: tuple[str, ...] = ()
    """Tokens that such a run was given."""
    task: str = ""
    """Task id of the call whose message such a run is: Celery's tracer stores the end of this call."""

    @property
    def was_stopped(self) -> bool:
        """Whether it ended, if it did, since it was to stop."""
        return self.asked < inf and self.outcome in STOPPED_ENDS


@dataclass(slots=True)
class MergedCall:
    """A call that may merge with others, by its token, and its fate. *tries*: how often it was published."""

    token: str
    task: str = ""
    name: str = ""
    type: str = ""
    tries: int = 0
    intended: float = inf
    accepted: float = inf
    refused: str = ""
    follows: str = ""
    runs: list[Run] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """Jobs of the step that follows."""
    has_own: list[bool] = field(default_factory=list)
    """For each run of such a step: whether the result has this call."""
    judged: bool = False

    @property
    def key(self) -> str:
        return self.token.partition(":")[0]


@dataclass(slots=True)
class Job:
    """A publish, by the id of its stamp, and its fate. The time of an event that did not happen is inf."""

    id: str
    redis_id: str = ""
    task: str = ""
    name: str = ""
    intended: float = inf
    accepted: float = inf
    refused: str = ""
    refused_at: float = inf
    type: str = ""
    tenant: str = ""
    due: float = 0.0
    expires: float = inf
    failed: str = ""
    runs: list[Run] = field(default_factory=list)
    judged: bool = False

    @property
    def ended(self) -> bool:
        return any(run.end < inf and not run.was_stopped for run in self.runs)


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which something was wrong. *of*: a worker's pid or a name; 0 or "*" for all."""

    what: str
    of: object
    since: float
    until: float
    latest: float = 0.0  # of several windows in one: when the last one began

    def meets(self, since: float, until: float) -> bool:
        return self.since <= until and since <= self.until


@dataclass(frozen=True, slots=True)
class Unstored:
    """A result, by its state, that a process of the worker *worker* could not store: its connection was broken."""

    at: float
    worker: int
    state: str


@dataclass(slots=True)
class Pause:
    """A pause of *what*, as the scripts call it, in force for claims above fence *above*, up to fence *up_to*.

    *up_to* 0: nobody looked before the pause ended by itself.
    """

    what: str
    since: float
    above: int
    until: float = inf
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Limits, by pattern, in force for claims above a fence that is *before* at least, and *after* at most.

    *began*: when the server was asked for the change. *noted*: when it had surely answered. *minima*: of tenants.
    """

    began: float
    before: int
    after: int
    limits: dict[str, int]
    minima: dict[str, int] = field(default_factory=dict)
    noted: float = inf
