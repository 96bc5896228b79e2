"""Facts from the ledger: jobs with their runs, windows of faults, pauses and limits."""

from dataclasses import dataclass, field
from math import inf

#: Possible outcomes of a preempted run, which stops itself or is killed.
STOPPED_ENDS = ("", "Preempted", "SystemExit", "GreenletExit")


@dataclass(slots=True)
class Run:
    """One start of a job, and its end if it ended."""

    id: str
    pid: int
    worker: int
    start: float
    end: float = inf
    outcome: str = ""
    keys: list[str] = field(default_factory=list)
    fence: int = 0
    preemptible: bool = False
    #: Time at which its task noticed the preemption.
    asked: float = inf
    priority: int = 0
    mode: str = "queued"
    #: Tokens of merged calls, beginning with the first call.
    calls: tuple[str, ...] = ()
    #: Tokens in the arguments of a merged run.
    given: tuple[str, ...] = ()
    #: Task id of the call whose message a merged run has: Celery's tracer stores the result of this call.
    task: str = ""

    @property
    def was_stopped(self) -> bool:
        """True if it was preempted, and its outcome is one of a preempted run."""
        return self.asked < inf and self.outcome in STOPPED_ENDS


@dataclass(slots=True)
class MergedCall:
    """A call of a merging task, by its token. *tries*: number of its publishes."""

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
    #: Jobs of its follow-up step.
    steps: list[str] = field(default_factory=list)
    #: Per run of the follow-up step: True if the result contains this call.
    has_own: list[bool] = field(default_factory=list)
    checked: bool = False

    @property
    def key(self) -> str:
        return self.token.partition(":")[0]


@dataclass(slots=True)
class Job:
    """A published job, by the id in its header. The time of an event that did not happen is inf."""

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
    checked: bool = False

    @property
    def ended(self) -> bool:
        return any(run.end < inf and not run.was_stopped for run in self.runs)


@dataclass(frozen=True, slots=True)
class Window:
    """The time of a fault. *of*: a worker's pid or a name; 0 or "*" for all."""

    what: str
    of: object
    since: float
    until: float
    latest: float = 0.0  # start of the last window, if several were joined

    def meets(self, since: float, until: float) -> bool:
        return self.since <= until and since <= self.until


@dataclass(frozen=True, slots=True)
class Unstored:
    """A result with *state* that a process of *worker* could not store because its connection was broken."""

    at: float
    worker: int
    state: str


@dataclass(slots=True)
class Pause:
    """A pause of the address *what*, in force for claims with fencing tokens above *above*, up to *up_to*.

    *up_to* is 0 if the fencing token was not read before the pause expired.
    """

    what: str
    since: float
    above: int
    until: float = inf
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Limits by pattern, in force for claims above a fencing token between *before* and *after*."""

    #: Time at which the change was sent.
    began: float
    before: int
    after: int
    limits: dict[str, int]
    #: Tenant -> minimum.
    minima: dict[str, int] = field(default_factory=dict)
    #: Time after the server's reply.
    noted: float = inf
