"""Plain facts about an app, its server and its fleet, which the rules judge. None means that a fact is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..http_workers.handout import JobLeftToCelery


@dataclass(frozen=True)
class BackendFacts:
    """A result backend on the broker's server."""

    url: str
    #: Age in seconds at which results are deleted, or None for never.
    expires_s: float | None


@dataclass(frozen=True)
class ResultFacts:
    """The result backend that an app names."""

    #: URL without a password.
    url: str
    #: Name of the backend, if Celery has no such backend.
    unknown: str | None = None
    #: The most similar name of a backend.
    meant: str | None = None
    #: Error, if the backend cannot be created.
    fails: str | None = None
    #: Error, if the server does not answer; only for Redis and Valkey.
    down: str | None = None


@dataclass(frozen=True)
class StatedName:
    """A task name or pattern in a setting that matches no task of the app."""

    #: The setting.
    where: str
    #: The task with the most similar name.
    meant: str | None = None


@dataclass(frozen=True)
class TaskWithoutTenant:
    """A task whose tenant template leaves calls without a tenant."""

    task: str
    #: Place of the template.
    where: str
    template: str
    #: Fields that are None in calls which do not pass them.
    left_out: tuple[str, ...] = ()
    #: Reason why no call can fill the template.
    complaint: str | None = None


@dataclass(frozen=True)
class AppFacts:
    """The facts of an app. URLs are without passwords."""

    broker: str = "redis://localhost:6379/0"
    transport: str = "'celery_affinity:Transport'"
    transport_is_ours: bool = True
    #: Error, if ``broker_transport`` does not name a transport.
    transport_fails: str | None = None
    #: Error, if the transport options give no Redis keys.
    keys_refused: str | None = None
    url_refused: str | None = None
    #: Errors in settings and options.
    refused: tuple[str, ...] = ()
    #: Options one letter away from options of ours, with their places.
    misspelt: tuple[str, ...] = ()
    #: Errors in the options of ``beat_schedule`` entries.
    not_sent: tuple[str, ...] = ()
    #: Priorities outside of 0 to 10.
    out_of_range: tuple[str, ...] = ()
    #: Error, if the modules of the tasks cannot be imported.
    not_imported: str | None = None
    options: tuple[str, ...] = ()
    known_options: tuple[str, ...] = ()
    #: False if kombu serves some queues.
    schedules_all: bool = True
    priority_order_is_set: bool = True
    #: Places that use Celery's priority.
    priorities: tuple[str, ...] = ()
    #: Changed settings of Celery's without effect here -> values.
    void: Mapping[str, object] = field(default_factory=dict)
    cancels_on_connection_loss: bool = False
    guard: bool = True
    tls_unverified: bool = False
    #: True if the broker's URL is the URL of a cluster.
    cluster: bool = False
    #: True if results go to one node of a cluster, used like a single server.
    results_on_a_node: bool = False
    #: Value of ``affinity_ingest``.
    ingests: bool = True
    backend: BackendFacts | None = None
    #: Scheduled type -> its declarations, such as ``task shop.render``.
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    #: True if redis-py has its fast parser.
    hiredis: bool = True
    #: Tasks that merge -> the class of another package that also merges or drops their calls.
    merges_twice: Mapping[str, str] = field(default_factory=dict)
    #: Tasks whose batches exceed a worker's buffers -> (calls per batch, maximum number of buffered calls).
    small_batches: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Errors in entries of ``affinity_recurring``, with their names.
    not_recurring: tuple[str, ...] = ()
    #: Type patterns in ``affinity_max_pending``.
    bounds: tuple[str, ...] = ()
    #: Type patterns in ``affinity_reserve``.
    reserves: tuple[str, ...] = ()
    #: Key patterns in ``affinity_limits``.
    limits: tuple[str, ...] = ()
    #: Keys that tasks' rules make, with ``*`` for each argument, or None if a function makes some.
    key_patterns: tuple[str, ...] | None = ()
    #: Names in settings that match no task.
    no_tasks: tuple[StatedName, ...] = ()
    #: Tasks and task name patterns whose jobs have locality hints.
    hinted: tuple[str, ...] = ()
    #: Error, if Celery cannot read the app's settings. All other facts are unknown then.
    conf_refused: str | None = None
    #: Old names of settings -> new names, if this is the reason of `conf_refused`.
    renames: Mapping[str, str] = field(default_factory=dict)
    #: Preemptible tasks -> True if they have a tenant even if their calls do not set one.
    preemptible: Mapping[str, bool] = field(default_factory=dict)
    #: Key patterns that tasks of several cohorts make -> task -> cohort.
    shared_keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Tasks whose tenant template leaves calls without a tenant.
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
    """The facts of a server. Sizes are in bytes."""

    #: "redis", "valkey", or another name that the server reports.
    kind: str = "valkey"
    version: tuple[int, ...] = (9, 0)
    cluster: bool = False
    #: Number of connected replicas.
    replicas: int | None = None
    replica: bool = False
    schema: str | None = None
    policy: str = "noeviction"
    used: int = 1
    maxmemory: int = 0
    #: Memory of the machine.
    of_machine: int = 0
    aof: bool = True
    #: Setting for snapshots, or "" if there are none.
    save: str | None = None
    #: The file whose last write failed: "snapshot" or "append-only file".
    failing: str | None = None
    clients: int = 1
    max_clients: int = 10_000
    #: Seconds by which this host's clock is ahead of the server's.
    clock_here_s: float = 0.0
    #: Last step of the server's clock.
    stepped: ClockStepSeen | None = None
    #: Error, if the user has no right to query the server. Only schema and clock are known then.
    refused: str | None = None

    @property
    def has_no_room_for_replies(self) -> bool:
        """True if workers must not be queried, because the server refuses their replies or soon will."""
        return self.maxmemory > 0 and self.used >= REPLIES_BELOW * self.maxmemory


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker that answered over remote control."""

    name: str
    queues: tuple[str, ...]
    #: True if the worker has this transport. Otherwise, the fields below are unknown.
    ours: bool = True
    id: str | None = None
    app: str | None = None
    namespace: str | None = None
    guard: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    clock_ahead_s: float | None = None


@dataclass(frozen=True)
class MemberFacts:
    """A worker that is alive according to the server."""

    id: str
    name: str
    types: tuple[str, ...]
    last_heartbeat_s: float = 0.0
    #: True if the worker's event loop is stalled.
    stalled: bool = False
    #: Tasks that the worker can preempt, or None for all.
    stops: frozenset[str] | None = None
    age_s: float | None = None

    def can_stop(self, task: str) -> bool:
        return self.stops is None or task in self.stops


@dataclass(frozen=True)
class ChangedSetting:
    """A setting that can be changed at run time."""

    name: str
    #: Value in force.
    value: object
    #: Value in the app.conf of the worker that joined last.
    conf: object
    #: Value in this app.conf.
    own: object
    #: True if a repair restored the app.conf value because the value in Redis was deleted or invalid.
    is_damaged: bool = False


@dataclass(frozen=True)
class FullBound:
    """A type with as many pending jobs as ``affinity_max_pending`` allows."""

    type: str
    pending: int
    most: int
    #: Effect on further calls.
    effect: str
    #: Sentences about the pauses that block the type's jobs.
    pauses: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetFacts:
    """Workers and jobs."""

    answers: tuple[WorkerAnswer, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    #: Type -> number of pending jobs.
    pending: Mapping[str, int] = field(default_factory=dict)
    #: Queue -> number of messages in stock Celery's lists.
    stock_messages: Mapping[str, int] = field(default_factory=dict)
    #: Queue with stock messages but without a worker of the fleet -> description of the oldest message.
    oldest: Mapping[str, str] = field(default_factory=dict)
    #: Queues with stock messages that kombu serves (``affinity_queues``).
    left_to_kombu: frozenset[str] = frozenset()
    #: True if some queues were not read.
    more_lists: bool = False
    scheduled: int = 0
    dead: int = 0
    #: Number of jobs published while no live worker served their type.
    unserved: int = 0
    #: Seconds since the last tick of a dispatcher.
    ticked_s: float | None = None
    settings: tuple[ChangedSetting, ...] = ()
    #: Sentences about reserves that leave no slot to their class.
    reserves: tuple[str, ...] = ()
    heartbeat_s: float = 5.0
    namespace: str = "affinity"
    #: Error, if the workers could not be queried.
    not_asked: str | None = None
    #: Types whose bound is reached.
    full: tuple[FullBound, ...] = ()
    #: Patterns of this app's ``affinity_limits`` that match the key of a pending or running job.
    limits_in_use: tuple[str, ...] = ()
    #: Number of slots of all live workers.
    slots: int = 0
    #: Tenant -> its minimum in the quotas in force.
    minima: Mapping[str, int] = field(default_factory=dict)
    #: Tenant with a quota but no job -> tenant with jobs, no quota and a similar name.
    tenants_misspelt: Mapping[str, str] = field(default_factory=dict)
    #: Ids of workers in other cohorts, or None if some are unknown.
    elsewhere: frozenset[str] | None = frozenset()
    #: Keys of jobs that limit something, if the app has cohorts.
    keys_in_use: frozenset[str] = frozenset()
    #: Pending jobs that HTTP workers cannot run.
    left_to_celery: tuple[JobLeftToCelery, ...] = ()

    @property
    def served(self) -> frozenset[str]:
        """The types that our live workers serve."""
        return frozenset(type_ for member in self.members for type_ in member.types)


@dataclass(frozen=True)
class OtherCohortMap:
    """A cohort map of the fleet that differs from the app's map."""

    #: The app's map.
    own: str
    #: The fleet's map.
    in_force: str
    #: Revision of the fleet's map.
    revision: int


@dataclass(frozen=True)
class Facts:
    """All gathered facts."""

    app: AppFacts
    server: ServerFacts | None = None
    #: None if the fleet was not queried.
    fleet: FleetFacts | None = None
    #: Error, if the broker does not answer.
    down: str | None = None
    #: None if the app has no result backend.
    results: ResultFacts | None = None
    #: Cohorts other than `default` -> their facts, if the fleet was queried.
    cohorts: Mapping[str, "Facts"] = field(default_factory=dict)
    #: None if app and fleet have the same cohort map.
    other_map: OtherCohortMap | None = None
