"""The plain facts that the rules judge: of an app, of its server and of its fleet. A fact of None is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BackendFacts:
    """A result backend on the broker's own server. *expires_s*: age at which results go; None: never."""

    url: str
    expires_s: float | None


@dataclass(frozen=True)
class ResultFacts:
    """The result backend that an app names. *url*: without a password.

    *unknown*: its name, if Celery has no such backend, and *meant*: the one that is most like it. *fails*: the error,
    if it cannot be made. *down*: the error, if its server does not answer; known of Redis and Valkey alone.
    """

    url: str
    unknown: str | None = None
    meant: str | None = None
    fails: str | None = None
    down: str | None = None


@dataclass(frozen=True)
class StatedName:
    """A name or pattern of tasks in the setting *where*, of which the app has none. *meant*: a task of such a name."""

    where: str
    meant: str | None = None


@dataclass(frozen=True)
class TaskWithoutTenant:
    """A *task* whose calls have no tenant by the *template* that the place *where* says.

    *left_out*: its fields that are None in calls that do not give them. *complaint*: why no call fills the template.
    """

    task: str
    where: str
    template: str
    left_out: tuple[str, ...] = ()
    complaint: str | None = None


@dataclass(frozen=True)
class AppFacts:
    """The facts of an app. URLs are without passwords.

    *transport_fails*: the error, if ``broker_transport`` is no transport at all. *keys_refused*: the error, if the
    transport's options give no Redis keys. *not_imported*: the error, if the tasks' modules cannot be imported.
    *refused*: errors in settings and options. *misspelt*: options one letter away from ours, with their places.
    *not_sent*: errors in the options of ``beat_schedule`` entries. *out_of_range*: priorities outside of 0 to 10.
    *schedules_all*: False if some queues are left to kombu.

    *declared*: scheduled type -> its declarations, such as ``task shop.render``. *priorities*: the places that use
    Celery's own priority. *void*: settings of Celery's that were changed, but have no effect here, with their values.
    *hiredis*: whether redis-py has its fast parser. *merges_twice*: tasks that merge, each with the class of another
    package that merges, or drops, its calls as well. *not_recurring*: what is wrong with entries of
    ``affinity_recurring``, with their names. *bounds*, *reserves*: the patterns of types in ``affinity_max_pending``
    and ``affinity_reserve``; *limits*: those of keys in ``affinity_limits``. *key_patterns*: the keys that the rules of
    tasks make, with ``*`` for each argument; None if a function makes some. *no_tasks*: names of tasks in settings.
    *hinted*: tasks, and patterns of names of tasks, whose jobs have hints of locality.
    *conf_refused*: the error, if Celery cannot read the app's settings; nothing else is known then. *renames*: the new
    names of settings with old names, if that is the reason. *cluster*: whether the broker's URL is that of a cluster;
    *results_on_a_node*: whether results are to go to one node of a cluster, as to a server. *ingests*:
    ``affinity_ingest``. *preemptible*: tasks whose jobs may be stopped -> whether they have a tenant without their
    calls saying so. *shared_keys*: patterns of keys that tasks of several cohorts make -> these tasks, each with its
    cohort. *no_tenant*: tasks whose template of a tenant leaves calls without one.
    """

    broker: str = "redis://localhost:6379/0"
    transport: str = "'celery_affinity:Transport'"
    transport_is_ours: bool = True
    transport_fails: str | None = None
    keys_refused: str | None = None
    url_refused: str | None = None
    refused: tuple[str, ...] = ()
    misspelt: tuple[str, ...] = ()
    not_sent: tuple[str, ...] = ()
    out_of_range: tuple[str, ...] = ()
    not_imported: str | None = None
    options: tuple[str, ...] = ()
    known_options: tuple[str, ...] = ()
    schedules_all: bool = True
    priority_order_is_set: bool = True
    priorities: tuple[str, ...] = ()
    void: Mapping[str, object] = field(default_factory=dict)
    cancels_on_connection_loss: bool = False
    guard: bool = True
    tls_unverified: bool = False
    cluster: bool = False
    results_on_a_node: bool = False
    ingests: bool = True
    backend: BackendFacts | None = None
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    hiredis: bool = True
    merges_twice: Mapping[str, str] = field(default_factory=dict)
    small_batches: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Task whose batches exceed a worker's buffers -> (calls per batch, maximum number of buffered calls)."""
    not_recurring: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    reserves: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    key_patterns: tuple[str, ...] | None = ()
    no_tasks: tuple[StatedName, ...] = ()
    hinted: tuple[str, ...] = ()
    conf_refused: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    preemptible: Mapping[str, bool] = field(default_factory=dict)
    shared_keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    no_tenant: tuple[TaskWithoutTenant, ...] = ()


@dataclass(frozen=True)
class ClockStepSeen:
    """A step of the server's clock."""

    #: Size in seconds, positive for a step forward.
    size_s: float
    #: Seconds from the step to the check.
    ago_s: float


#: Fraction of `maxmemory` above which workers are not queried: their replies need memory that publishers need too.
REPLIES_BELOW = 0.95


@dataclass(frozen=True)
class ServerFacts:
    """The facts of a server. Sizes are in bytes.

    *kind*: "redis", "valkey", or another name that the server gives itself. *of_machine*: memory of the machine.
    *save*: the setting for snapshots, "" for none. *failing*: the file that could not be written last, a snapshot or
    the append-only file. *replicas*: the number of those that are connected. *clock_here_s*: lead of this host's clock
    over the server's. *stepped*: the last step of the server's clock.
    """

    kind: str = "valkey"
    version: tuple[int, ...] = (9, 0)
    cluster: bool = False
    replicas: int | None = None
    replica: bool = False
    schema: str | None = None
    policy: str = "noeviction"
    used: int = 1
    maxmemory: int = 0
    of_machine: int = 0
    aof: bool = True
    save: str | None = None
    failing: str | None = None
    clients: int = 1
    max_clients: int = 10_000
    clock_here_s: float = 0.0
    stepped: ClockStepSeen | None = None
    refused: str | None = None
    """Error of a server whose user may not ask: everything but schema and clock is unknown then."""

    @property
    def has_no_room_for_replies(self) -> bool:
        """True if workers must not be queried, because the server refuses their replies or soon will."""
        return self.maxmemory > 0 and self.used >= REPLIES_BELOW * self.maxmemory


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker that answered over remote control. *ours*: whether the worker has this transport.

    *id*, and all fields below, are known of our workers alone.
    """

    name: str
    queues: tuple[str, ...]
    ours: bool = True
    id: str | None = None
    app: str | None = None
    namespace: str | None = None
    guard: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    clock_ahead_s: float | None = None


@dataclass(frozen=True)
class MemberFacts:
    """A worker that is alive according to the server. *stalled*: the worker's event loop stands still.

    *stops*: the tasks that the worker can stop for another tenant; None: all.
    """

    id: str
    name: str
    types: tuple[str, ...]
    last_heartbeat_s: float = 0.0
    stalled: bool = False
    stops: frozenset[str] | None = None
    age_s: float | None = None

    def can_stop(self, task: str) -> bool:
        return self.stops is None or task in self.stops


@dataclass(frozen=True)
class ChangedSetting:
    """A setting that can be changed at run time.

    *value*: that in force. *conf*: that in the app.conf of the worker that joined last. *own*: that in this app.conf.
    *is_damaged*: True if a repair restored the app.conf value because the value in Redis was deleted or invalid.
    """

    name: str
    value: object
    conf: object
    own: object
    is_damaged: bool = False


@dataclass(frozen=True)
class FullBound:
    """A type of which as many jobs wait as ``affinity_max_pending`` admits. *effect*: what becomes of further calls.

    *pauses*: sentences about the pauses that keep its jobs from starting.
    """

    type: str
    pending: int
    most: int
    effect: str
    pauses: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobLeftToCelery:
    """A pending job that workers over HTTP leave to Celery's. *why*: what it has that they cannot run, in words."""

    job_id: str
    type: str
    why: str


@dataclass(frozen=True)
class FleetFacts:
    """Workers and jobs.

    *pending*: type -> number of pending jobs. *stock_messages*: queue -> number of messages in stock Celery's lists.
    *oldest*: such a queue without a worker of the fleet -> description of its oldest message. *left_to_kombu*: such
    queues that are not scheduled (``affinity_queues``). *more_lists*: True if some queues were not read.
    *unserved*: number of jobs published while no live worker served their type. *ticked_s*: time since the last tick of
    a dispatcher. *reserves*: sentences about those that leave no slot to their class. *not_asked*: the error, if the
    workers could not be asked. *full*: types whose bound is reached. *limits_in_use*: those patterns of this app's
    ``affinity_limits`` to which a key of jobs fits that wait or run. *slots*: of all live workers. *minima*: tenants
    that have a minimum by the quotas in force -> it. *tenants_misspelt*: tenants with a quota and no job -> one with
    jobs and no quota of its own, whose name is alike. *elsewhere*: ids of workers in other cohorts; None if not all are
    known. *keys_in_use*: the keys of jobs that limit something, if the app has cohorts. *left_to_celery*: pending jobs
    that workers over HTTP cannot run.
    """

    answers: tuple[WorkerAnswer, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    pending: Mapping[str, int] = field(default_factory=dict)
    stock_messages: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, str] = field(default_factory=dict)
    left_to_kombu: frozenset[str] = frozenset()
    more_lists: bool = False
    scheduled: int = 0
    dead: int = 0
    unserved: int = 0
    ticked_s: float | None = None
    settings: tuple[ChangedSetting, ...] = ()
    reserves: tuple[str, ...] = ()
    heartbeat_s: float = 5.0
    namespace: str = "affinity"
    not_asked: str | None = None
    full: tuple[FullBound, ...] = ()
    limits_in_use: tuple[str, ...] = ()
    slots: int = 0
    minima: Mapping[str, int] = field(default_factory=dict)
    tenants_misspelt: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] | None = frozenset()
    keys_in_use: frozenset[str] = frozenset()
    left_to_celery: tuple[JobLeftToCelery, ...] = ()

    @property
    def served(self) -> frozenset[str]:
        """The types that live workers of ours serve."""
        return frozenset(type_ for member in self.members for type_ in member.types)


@dataclass(frozen=True)
class OtherCohortMap:
    """The map of the fleet's cohorts, *in_force*, and its *revision*, where the app has another one, *own*."""

    own: str
    in_force: str
    revision: int


@dataclass(frozen=True)
class Facts:
    """All facts that could be learnt. *down*: the error, if the broker does not answer. *fleet*: None if not asked.

    *other_map*: None if app and fleet have the same map of cohorts. *results*: None if the app has no result backend.
    *cohorts*: those of the cohorts beside `default`, of a fleet that was asked.
    """

    app: AppFacts
    server: ServerFacts | None = None
    fleet: FleetFacts | None = None
    down: str | None = None
    results: ResultFacts | None = None
    cohorts: Mapping[str, "Facts"] = field(default_factory=dict)
    other_map: OtherCohortMap | None = None
