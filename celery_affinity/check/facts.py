"""The facts about an app, its server and its fleet from which findings are derived. None means: unknown.

Facts of the app are read when a finding needs them. Facts of server and fleet are read by `gather`.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from celery import Celery
from celery.app.task import Task
from kombu.utils.url import url_to_parts

from ..errors import AffinityError
from ..http_workers.handout import JobLeftToCelery
from ..options.affinity import as_affinity
from ..options.call_options import Sources, queue_name, resolve
from ..publishing import validation
from ..publishing.app_config import settings_of, sources_of_task
from ..publishing.option_checks import options_in_beat_schedule, options_in_routes, sources_without_call
from ..publishing.validation import AppComplaint, app_complaints, complaints_in
from ..reports.status import Status
from ..reports.stock_messages import StockQueue
from ..scheduler.runtime_settings import RuntimeSetting
from ..schema.keys import Keys
from ..settings import limits
from ..settings.table import Settings
from ..transport import urls


@dataclass(frozen=True)
class AppFacts:
    """An app whose tasks' modules were imported."""

    celery: Celery
    #: The cohort to which `declared` is limited, because workers of other types are in other cohorts.
    cohort: str | None = None
    #: Error, if Celery cannot read the app's settings. Then all facts but `name` and `broker` are unavailable.
    conf_refused: str | None = None
    #: Error, if the modules of the tasks cannot be imported.
    not_imported: str | None = None

    @property
    def name(self) -> str:
        return self.celery.main or ""

    @property
    def conf(self) -> Any:
        return self.celery.conf

    @property
    def broker(self) -> str:
        """The broker's URL without a password."""
        return "unknown" if self.conf_refused else urls.mask_url(str(self.conf.broker_write_url))

    @cached_property
    def settings(self) -> Settings:
        """The settings, or the defaults if `refused` contains an error of them."""
        with suppress(AffinityError):
            return settings_of(self.celery)
        return Settings()

    @cached_property
    def node(self) -> urls.BrokerURL | None:
        """The first URL of the broker, or None if `url_refused`."""
        with suppress(AffinityError):
            return self._parse_urls()[0]
        return None

    @property
    def url_refused(self) -> str | None:
        return _error_of(self._parse_urls)

    def _parse_urls(self) -> list[urls.BrokerURL]:
        return [urls.parse_broker_url(part) for part in str(self.conf.broker_write_url).split(";")]

    @property
    def keys_refused(self) -> str | None:
        """Error, if the transport options give no Redis keys."""
        return _error_of(lambda: Keys.of_options(self.conf.broker_transport_options or {}))

    @property
    def cluster(self) -> bool:
        """True if the broker's URL is the URL of a cluster."""
        return self.node is not None and self.node.scheme in urls.CLUSTER

    @property
    def schedules_all(self) -> bool:
        """False if kombu serves some queues."""
        return "*" in self.settings.queues

    @property
    def limits(self) -> list[str]:
        """Key patterns in ``affinity_limits``."""
        stated = self.settings.limits
        return list(limits.typed_limits(stated) or {} if isinstance(stated, str) else stated)

    @property
    def results_on_broker(self) -> bool:
        """True if the result backend is on the broker's server."""
        backend, server = self.conf.result_backend, server_of_url(str(self.conf.broker_write_url))
        has_server = self.node is not None and server is not None
        return has_server and isinstance(backend, str) and server_of_url(backend) == server

    @property
    def tasks(self) -> list[tuple[str, Task]]:
        return sorted(self.celery.tasks.items())

    @cached_property
    def sources(self) -> list[tuple[str, Task, Sources]]:
        """The tasks with valid options, and the sources of their calls. `refused` contains the errors of the others."""
        with_sources = []
        for name, task in self.tasks:
            with suppress(AffinityError):
                with_sources.append((name, task, sources_without_call(self.celery, name, task, self.settings)))
        return with_sources

    def static_options(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the options in task_routes and beat_schedule entries, with their places."""
        return [*options_in_routes(self.conf), *self.beat_options()]

    def beat_options(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the options in beat_schedule entries, with their places."""
        return list(options_in_beat_schedule(self.conf))

    @cached_property
    def complaints(self) -> list[AppComplaint]:
        """Errors in options of tasks, routes and annotations."""
        return list(app_complaints(self.celery))

    @cached_property
    def entry_complaints(self) -> list[AppComplaint]:
        """Errors in options of ``beat_schedule`` entries."""
        scheduled = self.schedules_all
        complaints = (complaints_in(*entry, scheduled=scheduled) for entry in self.beat_options())
        return list(chain.from_iterable(complaints))

    @cached_property
    def refused(self) -> list[str]:
        """Errors in settings and options."""
        error = _error_of(lambda: settings_of(self.celery))
        in_options = [str(complaint) for complaint in self.complaints if not complaint.misspelt]
        return list(dict.fromkeys([*([error] if error else []), *in_options, *self._types[1]]))

    @cached_property
    def declared(self) -> Mapping[str, tuple[str, ...]]:
        """Scheduled type -> its declarations, such as ``task shop.render``."""
        declarations: dict[str, dict[str, None]] = {}
        for type_, declaration in self._types[0]:
            if type_ and self.settings.schedules(type_):
                declarations.setdefault(type_, {})[declaration] = None
        declared = {type_: tuple(texts) for type_, texts in sorted(declarations.items())}
        if self.cohort is not None and self.settings.cohorts:
            with suppress(AffinityError):  # several cohorts match, so calls fail with this error
                return {type_: who for type_, who in declared.items() if self.settings.cohort_of(type_) == self.cohort}
        return declared

    @cached_property
    def _types(self) -> tuple[list[tuple[str | None, str]], list[str]]:
        """Types with their declarations in tasks, routes, patterns and beat_schedule entries; and errors in tasks."""
        types: list[tuple[str | None, str]] = []
        errors = []
        for name, task in self.tasks:
            if not name.startswith("celery."):
                try:
                    types.append((self.type_of_task(name, task), f"task {name}"))
                except AffinityError as exc:
                    errors.append(f"task {name}: {exc}")
        types += [(type_, f"affinity_task_types {pattern!r}") for pattern, type_ in self.settings.task_types.items()]
        for where, options in self.static_options():
            with suppress(AffinityError):  # one of the complaints
                types.append((as_affinity(options.get("affinity")).type or queue_name(options.get("queue")), where))
        return types, errors

    def type_of_task(self, name: str, task: Task) -> str | None:
        """Return the type of a call without options, which a custom router can set too."""
        given = {name: value for name, value in task._get_exec_options().items() if value is not None}
        try:
            options = self.celery.amqp.router.route(given, name, (), {}, task)
        except Exception:  # a custom router can inspect arguments, or require a queue that is not declared
            options = {}
        sources = sources_of_task(name, task, self.settings)
        routed = sources._replace(options=options, call_affinity=as_affinity(options.get("affinity")))
        type_: str | None = resolve("affinity", routed)
        return type_


def gather_app(app: Celery) -> AppFacts:
    """Return the facts of *app*, after importing the modules that a worker would import."""
    try:
        list(app.conf.keys())  # reads them
    except Exception as exc:  # any: a settings module is user code, and Celery rejects mixed old and new names
        return AppFacts(app, conf_refused=str(exc))
    try:
        app.loader.import_default_modules()
        validation.finalize_anyway(app)
    except Exception as exc:  # any: these modules are user code
        return AppFacts(app, not_imported=f"{type(exc).__name__}: {exc}")
    return AppFacts(app)


def _error_of(read: Callable[[], object]) -> str | None:
    try:
        read()
    except AffinityError as exc:
        return str(exc)
    return None


def server_of_url(url: str) -> tuple[str, int] | str | None:
    """Return the server of a Redis URL, as host and port or as a path, or None for another URL."""
    parts = url_to_parts(re.sub(r"^valkey(s?):", r"redis\1:", url.partition(";")[0]))
    if parts.scheme in ("socket", "redis+socket"):
        return str(parts.path).strip("/")
    if parts.scheme not in ("redis", "rediss", "sentinel"):
        return None
    host = parts.hostname or "localhost"
    default = 26379 if parts.scheme == "sentinel" else 6379
    return "localhost" if host in ("127.0.0.1", "::1") else host, int(parts.port or default)


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
    """A server. Two facts about one server are equal even if its INFO has changed."""

    #: Reply to INFO. Sizes are in bytes.
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Id of the server's run.
    run_id: str = ""
    schema: str | None = None
    #: Setting for snapshots, or "" if there are none.
    save: str | None = None
    #: Seconds that this host's clock is ahead of the server's clock.
    clock_here_s: float = 0.0
    #: Last step of the server's clock.
    stepped: ClockStepSeen | None = None
    #: Error, if the user has no right to query the server. Only schema and clock are available then.
    refused: str | None = None

    @property
    def kind(self) -> str:
        """Return "redis", "valkey", or another name that the server reports."""
        kinds = (kind for kind in ("valkey", "dragonfly") if f"{kind}_version" in self.info)
        return next(kinds, str(self.info.get("server_name") or "redis"))

    @property
    def version(self) -> tuple[int, ...]:
        names = ("valkey_version", "dragonfly_version", "redis_version")
        text = str(next((self.info[name] for name in names if name in self.info), "0"))
        return tuple(int(part) for part in text.split("-")[0].lstrip("v").split(".") if part.isdigit())

    @property
    def policy(self) -> str:
        return str(self.info.get("maxmemory_policy", ""))

    def number(self, name: str) -> int:
        """Return a number of INFO, or 0."""
        return int(self.info.get(name, 0))

    @property
    def has_no_room_for_replies(self) -> bool:
        """True if workers must not be queried, because the server refuses their replies or soon will."""
        maxmemory = self.number("maxmemory")
        return maxmemory > 0 and self.number("used_memory") >= REPLIES_BELOW * maxmemory


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
class FleetFacts:
    """Workers and jobs of a cohort."""

    app: AppFacts
    status: Status
    answers: tuple[WorkerAnswer, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    #: Queue -> messages in stock Celery's lists. The oldest message is only read without a worker of the fleet.
    stock_messages: Mapping[str, StockQueue] = field(default_factory=dict)
    #: True if some queues were not read.
    more_lists: bool = False
    #: Seconds since the last tick of a dispatcher.
    ticked_s: float | None = None
    settings: tuple[RuntimeSetting, ...] = ()
    heartbeat_s: float = 5.0
    namespace: str = "affinity"
    #: Error, if the workers could not be queried.
    not_asked: str | None = None
    #: Patterns of this app's ``affinity_limits`` that match the key of a pending or running job.
    limits_in_use: tuple[str, ...] = ()
    #: Ids of workers in other cohorts, or None if some are unknown.
    elsewhere: frozenset[str] | None = frozenset()
    #: Keys of jobs that limit something, if the app has cohorts.
    keys_in_use: frozenset[str] = frozenset()
    #: Pending jobs that HTTP workers cannot run.
    left_to_celery: tuple[JobLeftToCelery, ...] = ()
    #: Number of tasks and types whose run time is known, or None if that was not read.
    run_times: int | None = None
    #: Number of waiting jobs with their own due time.
    due_jobs: int = 0
    #: Type -> p99 of the waits of the last 5 to 10 minutes, in seconds.
    waits_p99_s: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def served(self) -> frozenset[str]:
        """The types that our live workers serve."""
        return frozenset(type_ for member in self.members for type_ in member.types)

    @cached_property
    def pending(self) -> Mapping[str, int]:
        """Type -> number of pending jobs, if there are some."""
        return {type_.type: type_.pending for type_ in self.status.types if type_.pending}

    @property
    def minima(self) -> Mapping[str, int]:
        """Tenant -> its minimum in the quotas in force."""
        return {tenant.name: tenant.minimum for tenant in self.status.tenants if tenant.is_named and tenant.minimum}


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
