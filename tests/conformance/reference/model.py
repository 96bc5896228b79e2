"""The data of a cohort: jobs, workers, and shared data. Times are µs of the server's clock."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from celery_affinity.options.recurring import RecurringCall
from celery_affinity.policy.run_times import RunTime
from celery_affinity.schema.constants import ENDED_KEPT_S, MAX_BYTES, PREEMPT_SIGN
from celery_affinity.schema.rules_codec import StatedRate

from .settings_in_force import InForce

State = Literal["scheduled", "pending", "merged", "claimed", "done", "failed", "dead", "revoked", "expired"]

#: Where jobs wait for a key: the key, and their type, mode and priority.
SubLane = tuple[str, str, bool, int]

#: How a claimed job ended. Settled: "acked", "ignored" (only the task knows whether it succeeded), "failed", "revoked"
#: (its worker was told), "expired" (before its start). Finally refused: "rejected". Neither: "unsettled". Its task
#: requests another run: "requeued". A time limit, or the loss of its pool process, ended its run: "aborted". Returned
#: unstarted by its worker: "returned". A reason may follow a space: "failed ValueError: no such page".
Outcome = str


class Delivery(NamedTuple):
    """A delivery of a job to a worker. *fence* distinguishes the deliveries of a job."""

    job_id: str
    fence: int
    type: str
    deliveries: int
    enqueued_us: int
    message: str
    expires_us: int | None = None
    """When it ends if it has not started; None: never."""
    lane: tuple[bool, int] | None = None
    """Of a job that was moved: whether it is on demand, and its priority. Else its message says so."""
    preemptions: int = 0
    """How often it was stopped for another tenant."""
    requeues: int = 0
    """How often its task requeued it."""
    due_us: int | None = None
    """When it is due to start, by its own rules."""

    @property
    def size(self) -> int:
        """Bytes of the message. The scripts also count the line before it, a negligible difference."""
        return len(self.message.encode())


class Stop(NamedTuple):
    """An order to stop a running job, for a job of *type* of the tenant *key*."""

    job_id: str
    fence: int
    worker: str
    key: str
    type: str
    ordered_us: int
    grace_ms: int

    @property
    def sign(self) -> str:
        """The control message in the worker's inbox."""
        return f"\n{PREEMPT_SIGN} {self.job_id} {self.fence} {self.grace_ms}"


@dataclass
class Job:
    """One published message. *enqueued_us*: when it was published or due, also after later requeues."""

    id: str
    type: str
    on_demand: bool
    priority: int
    enqueued_us: int
    state: State
    message: str | None
    """None once it has ended."""
    task_id: str = ""
    task_name: str = ""
    expires_us: int | None = None
    """When it ends if it still waits, here or in a worker."""
    stamps: tuple[str, ...] = ()
    """Stamps of its message, "name:value"."""
    rules: str = ""
    """How it merges, and its key, as `schema/rules_codec` has it; "" for neither."""
    due: str = ""
    """The words of its due time, deadline and size (`lua/jobs/due_times.lua`), the deadline as an absolute time."""
    own_due_us: int | None = None
    """When it is due to start, by its own rules; None without such a rule."""
    head_us: int = 0
    """Its head start, which puts it before jobs that were published earlier."""
    published_us: int | None = None
    """When it was published, if it had to wait for its time."""
    deliveries: int = 0
    """Times that it came back, without those that do not count."""
    requeues: int = 0
    """Times that its task asked for another run; these are no deliveries."""
    pauses: int = 0
    """Times that a pause came before its next run, if only one of 0 s: requeues and aborted runs."""
    rank_us: int | None = None
    """The end of its last pause, which decides its place among the jobs that wait; None if it never had a pause."""
    is_moved: bool = False
    """Whether somebody gave it another type, mode or priority than its message says."""
    acked: bool = False
    has_more: bool = False
    """Whether its row says that there is more to be seen to at its end: stamps, expiry, others of its task, a limit."""
    is_limited: bool = False
    """Whether a limit of its type, or a reserve, counts its claim."""
    worker: str | None = None
    fence: int | None = None
    by: str = ""
    """The number of the release whose reply carried it; "" if it came to its worker's inbox."""
    claimed_us: int | None = None
    """When it was claimed last, or expired instead."""
    charged: tuple[int, int] | None = None
    """The generation of shares in which it was claimed, and the time (µs) that its tenant was charged."""
    started_us: int | None = None
    """When its task started, as its worker said; None until it has."""
    ended_us: int | None = None
    forgotten_us: int | None = None
    """When a server forgets it, once it has ended and its caller knows."""
    keep_s: int = ENDED_KEPT_S
    """For how long that was then."""
    reason: str | None = None
    """Why it is dead: one of `dead_reasons.REASONS`; "deleted": a batch of which some calls are still to go."""
    why: str = ""
    """What its worker said of the error, of a job that failed or is dead."""
    is_listed: bool = True
    """Whether a dead job is among the dead letters that are kept; if not, it goes when its caller has been told."""
    left: tuple[str, ...] = ()
    """Apps that do not know its task, and leave it to other apps to tell its caller how it ended."""
    tries: int = 0
    """Times that somebody began to tell its caller."""
    bytes: int | None = None
    """Of a job that merges: bytes of the messages of all calls that it ever had."""
    patient_us: int | None = None
    """While it is scheduled: until when it waits for more calls, if it does; not for its own time."""
    into: str | None = None
    """Of a call that merged with others, and has not ended: its batch."""
    ran_in: str | None = None
    """Of a call that was revoked, or expired, while others ran for it: its batch and the number of the claim."""
    has_rules_of_its_own: bool = True
    """Whether its row has its rules: of a batch with very many calls the first ones do, and those that have a key."""
    calls: int | None = None
    """Of a batch: how many calls it ever had."""
    size: int | None = None
    """Of a batch: how many calls it had when it was claimed last, without those that its run left to another."""
    callers: dict[str, int] = field(default_factory=dict)
    """Of a batch: its calls that have not ended, and do not know how they will, each with a number, the first first."""
    told_callers: dict[str, int] = field(default_factory=dict)
    """Of a batch that is dead: its calls that know."""
    primary: str | None = None
    """Of a batch that is claimed: the call whose message its worker has."""
    again_us: int | None = None
    """Of a call that merges whose task had a job by then, as a retry has: when the first of these was published."""
    recurring: str = ""
    """The recurring call that it is a firing of."""
    stop: Stop | None = None
    """The last order to stop it."""
    preemptions: int = 0
    """How often it was stopped for another tenant; the others are about the last time."""
    preempted_us: int | None = None
    preempted_for: str = ""
    """The tenant that its slot was for."""
    preempted_on: str = ""
    """The node name of its worker."""
    preempted_ran_us: int = 0
    """For how long it had the slot, as the worker said."""

    @property
    def is_patient(self) -> bool:
        """True if it collects merging calls."""
        return self.state == "scheduled" and self.patient_us is not None

    @property
    def is_paused(self) -> bool:
        """True if it waits for the end of a pause after a requeue or an aborted run."""
        return self.state == "scheduled" and self.rank_us is not None

    @property
    def order_us(self) -> int:
        """The time that orders it among the waiting jobs: its rank."""
        return (self.enqueued_us if self.rank_us is None else self.rank_us) - self.head_us

    @property
    def waits_since_us(self) -> int:
        """When it began to wait: the end of its last pause, or its enqueue time."""
        return self.order_us + self.head_us

    @property
    def due_us(self) -> int:
        """When a scheduled job becomes pending."""
        if self.patient_us is not None:
            return self.patient_us
        return self.enqueued_us if self.rank_us is None else self.rank_us

    def has_expired(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us


@dataclass
class Share:
    """The slot time of a tenant in a class (mode and priority), in µs, divided by the tenant's weight.

    *credit_us*: time that was charged and not used, not divided. *use*: with a half-life, the logarithm of the decayed
    use. *running*: number of claimed jobs. *starts*: type -> start tag.
    """

    credit_us: int = 0
    use: float = 0
    running: int = 0
    starts: dict[str, float] = field(default_factory=dict)
    before: dict[str, float | None] = field(default_factory=dict)
    """Types whose candidates came during the function that is running, and none was claimed -> the start tag before."""
    written: object = ()
    """The share at the end of the last function."""


@dataclass
class Recurring:
    """A declared recurring call. *due_us*: when it fires, unless a matching call postpones it.

    *handed_out_us*: the next time it is handed out, or None if it is suspended.
    """

    call: RecurringCall
    app: str
    due_us: int
    handed_out_us: int | None
    matched_us: int | None = None
    """When a call that matches put it off last."""
    matched_by: str = ""
    """The task id of that call."""
    made: str = ""
    """The id of the job that was made of it last."""
    left: tuple[str, ...] = ()
    """Apps that do not know its task, and leave it to other apps."""
    left_us: int = 0
    """When one of these did so last."""


@dataclass
class Worker:
    """A live worker. *free*: its last number of free slots, which changed at *free_since_us*."""

    id: str
    name: str
    types: frozenset[str]
    slots: int
    other: int
    """Slots taken by what no claim shows, less the slots that claims lend while they wait for a rate limit."""
    joined_us: int
    seen_us: int
    app: str = ""
    """The app whose settings are known for as long as the worker lives, and a while longer."""
    priority: int = 0
    """Its place among workers that are equally specialised, where weights say so."""
    accepting: bool = True
    """Whether jobs are placed on it."""
    stalled: bool = False
    """Whether its event loop is blocked: then no jobs are placed, whatever `accepting` says."""
    keep_s: int = ENDED_KEPT_S
    """For how long jobs are known that end here."""
    keeps_failed: bool = False
    """Whether jobs that fail here are dead letters."""
    free: int = 0
    free_since_us: int = 0
    hints: dict[str, int] = field(default_factory=dict)
    """Hints of the jobs that it ended well, a few of them -> when it did so last, µs."""
    holds_since: dict[str, int] = field(default_factory=dict)
    """These hints -> since when it holds them, µs."""
    claims: dict[str, int] = field(default_factory=dict)
    """Job id -> fencing number, in the order they were granted."""
    inbox: list[Delivery | str] = field(default_factory=list)
    """Claimed jobs and signs that it has not read, the oldest first."""
    counted: int = 0
    """The number of the last sums of its jobs that it handed over."""
    stops: str = ""
    """What it can stop: "force" for all, or names of tasks, encoded."""
    preempted_us: list[int] = field(default_factory=list)
    """When jobs were stopped here lately for other tenants."""
    took: dict[str, str] = field(default_factory=dict)
    """Type -> its pace, in its own words (`rules/pace`)."""

    @property
    def takes_jobs(self) -> bool:
        """True if jobs are placed on it: a worker without slots has none to lend either."""
        return self.accepting and not self.stalled and self.slots > 0


@dataclass
class Cohort:
    """All data of a cohort on a server, without the indexes that spare the scripts from reading everything.

    *most_bytes*: the number of moved message bytes after which an invocation stops.
    """

    most_bytes: int = MAX_BYTES
    jobs: dict[str, Job] = field(default_factory=dict)
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)
    """Task id -> its jobs that have not ended, each with a number; or the one that ended last, which a server forgets
    later."""
    workers: dict[str, Worker] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Node name -> the worker that took it last."""
    schema: int | None = None
    """Number of the format of the keys, once a worker has joined."""
    settings: InForce = field(default_factory=InForce)
    claim_number: int = 0
    """Claims made that had a choice, since a share of them goes by age alone."""
    durations_us: dict[str, int] = field(default_factory=dict)
    """Type -> moving average of its jobs' time in a slot."""
    run_times: dict[str, RunTime] = field(default_factory=dict)
    """Encoded task name -> what is learned of its run times."""
    batched: Counter[str] = field(default_factory=Counter)
    """Type -> calls whose runs they were not alone in."""
    ahead: dict[str, str] = field(default_factory=dict)
    """Type -> the worker that took jobs of it beyond its slots last."""
    counters: Counter[str] = field(default_factory=Counter)
    metrics: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Type -> what is counted of its jobs (`rules/metrics`); of one without slots a server forgets it later."""
    ended: dict[str, int] = field(default_factory=dict)
    """Jobs that have ended, and are known for longer than a minute -> when they ended, µs."""
    requeues: list[str] = field(default_factory=list)
    """The last jobs that left a worker unfinished, newest first, as on a server."""
    unreported: dict[str, int] = field(default_factory=dict)
    """Jobs whose end their callers do not know -> when the callers are to be told, µs."""
    merging: dict[tuple[str, str, str, str], str] = field(default_factory=dict)
    """What calls merge by (`merging`) -> the call, or the batch, that the next such call joins while it waits."""
    recurring: dict[str, Recurring] = field(default_factory=dict)
    """Recurring calls by name."""
    recurring_of: dict[str, dict[str, str]] = field(default_factory=dict)
    """App -> recurring calls that its own app.conf had last -> a digest of each."""
    stated: dict[str, dict[str, int | StatedRate]] = field(default_factory=dict)
    """Key of a rule -> task name -> the limit, or the rate, that the task stated last."""
    open_keys: dict[str, str | None] = field(default_factory=dict)
    """Keys of rules that had room when they were renewed last -> the only type that the room is for, None: any."""
    stood: set[str] = field(default_factory=set)
    """Pending jobs that stood in their lanes when a key was renewed last."""
    sublanes: dict[SubLane, set[str]] = field(default_factory=dict)
    """Where jobs wait for their keys, and which, as when these were renewed last."""
    unbounded: dict[SubLane, int] = field(default_factory=dict)
    """Those of tenants of which no job has had to wait since they began -> the maximum: each of their jobs stands."""
    first_keys: set[str] = field(default_factory=set)
    """Keys of tenants that held fewer slots than their minimum when they were renewed last: their jobs go first."""
    advanced: set[tuple[str, str]] = field(default_factory=set)
    """Pending jobs that stand for their first key, each with a later one that it waits for since."""
    shares_era: int = 0
    """The generation of the following data."""
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    """Class, and key of a tenant -> its share."""
    clocks: dict[tuple[str, str], int] = field(default_factory=dict)
    """Class and type -> greatest start tag (µs) of a turn taken by a slot that serves the type."""
    candidates: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Class, key of a tenant, and type -> the tenant's oldest job in the lane, as last seen."""
    turn_start: float | None = None
    """Start tag of the turn in which a job is about to be claimed, or None without a turn."""
    may_fit: set[str] = field(default_factory=set)
    """Those that went on since a job left in this arrow: no slot was filled with them yet."""
    kept_for: dict[str, str] = field(default_factory=dict)
    """Key of a rule -> the retry that is the next one to get it (``keep_order``)."""
    turns: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Key of a rule -> the type whose turn it is, which has waited longest, since when and until when, µs."""
    had_key: dict[str, dict[str, int]] = field(default_factory=dict)
    """Key of a rule -> type -> when a job of it got the key last, or did not in its turn, while other types waited."""
    rates: dict[str, int] = field(default_factory=dict)
    """Key of a rate -> when all its starts are free again, µs."""
    due_keys: dict[str, int] = field(default_factory=dict)
    """Key of a rule that has pending jobs -> when it is to be renewed again, µs."""
    waiting_keys: dict[str, int] = field(default_factory=dict)
    """Key of a rule that has pending jobs -> the revision of the limits that its lanes agree with."""
    pauses: dict[str, str] = field(default_factory=dict)
    """What is paused ("type:T", "key:K" or "*") -> since when, until when and why, as the scripts write it."""
    pause_ends: dict[str, int] = field(default_factory=dict)
    """What is paused until a time -> the time, µs."""
    stop_orders: dict[str, Stop] = field(default_factory=dict)
    """Claimed jobs that their workers are to stop."""
    limited: dict[str, dict[str, int]] = field(default_factory=dict)
    """Type -> its claims that its limit, or a reserve for their class, counts -> numbers of their lanes."""
    counting: set[str] = field(default_factory=set)
    """Types whose limit is so new that claims from before it are not counted yet."""
    recounts: bool = False
    """Whether the next tick counts claims, for new limits and reserves."""
    to_fill: set[str] = field(default_factory=set)
    """Types of which a rule has let a job go on since the last `fill`, which looks at them as well."""
    revoked: dict[str, int] = field(default_factory=dict)
    """Task ids that were revoked -> when, µs; a server forgets them later."""
    revoked_stamps: dict[str, int] = field(default_factory=dict)
    """Stamps that were revoked -> when, µs; a server forgets them later."""
    leaving: list[Job] | None = None
    """Jobs that have stopped waiting in a function that re-evaluates their keys together, at its end."""
    expiring: dict[str, int] = field(default_factory=dict)
    """Jobs -> when they end if they still wait, µs."""
    stamped: dict[str, dict[str, int]] = field(default_factory=dict)
    """Stamp -> the jobs that bear it -> when they were published, µs."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    """Lists of stock Celery -> what waits there, the next one first."""
    fence: int = 0
    """The last fencing number given."""
    ticked_us: int | None = None
    grace_us: int | None = None
    """Since when silence counts, µs."""

    def types(self) -> set[str]:
        """Return the types of all jobs and workers."""
        return {job.type for job in self.jobs.values()}.union(*(worker.types for worker in self.workers.values()))

    def pending(self, types: Collection[str]) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "pending" and job.type in types]

    def first_scheduled(self) -> Job | None:
        """Return the scheduled job that is due next."""
        scheduled = (job for job in self.jobs.values() if job.state == "scheduled")
        return min(scheduled, key=lambda job: (job.due_us, job.id), default=None)

    def dead(self, job_ids: Iterable[str]) -> list[Job]:
        """Return the dead jobs, each once, without those being deleted."""
        found = [self.jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in self.jobs]
        return [job for job in found if job.state == "dead" and job.reason != "deleted"]

    def capacity(self, type_: str) -> int:
        """Return the number of slots of live workers that serve *type_*."""
        return sum(worker.slots for worker in self.workers.values() if type_ in worker.types)

    def is_fading(self, job: Job) -> bool:
        """Return True if *job* has ended and is only retained."""
        return job.state in ("done", "failed", "revoked", "expired") and job.id not in self.unreported
