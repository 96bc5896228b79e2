"""Define the settings: names, defaults, checks and meaning.

Settings are written in ``app.conf`` in lower case (``affinity_worker_timeout``) or with a Celery namespace
(``CELERY_AFFINITY_WORKER_TIMEOUT``). Times are in seconds. A check returns None if it accepts the value; otherwise it
returns the accepted values as text.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from ..errors import OptionError, SettingError, printable
from ..options.affinity import Affinity, affinity_of_pattern
from ..options.recurring import Recurring, as_recurring, check_name
from ..options.type_names import ACCEPTED, is_type_name
from ..policy import placement as placement_policy
from ..policy.placement import WEIGHTED
from ..schema import bounds, constants, values
from ..schema.bounds import Bound
from ..schema.constants import CONF_KEPT_S, ENDED_KEPT_S
from ..schema.values import (
    COUNT,
    COUNT_OR_0,
    SECONDS,
    SECONDS_FROM_1,
    SECONDS_OR_0,
    NumberCheck,
    check_whole,
    is_number_between,
)
from . import cohorts as cohort_settings
from . import reserves
from .limits import NONE, Limit, check_limits
from .tenants import Tenant, check_tenants

#: Value of ``affinity_lookahead`` that limits prefetched jobs by their expected duration.
AUTO = "auto"

#: Maximum points of a weight.
_MAX_POINTS = 10**6


def check_one_of(*names: str) -> NumberCheck:
    accepted = " or ".join(repr(name) for name in names)
    return lambda value: None if value in names else accepted


def check_auto_or_jobs(value: object) -> str | None:
    return None if value == AUTO or not JOBS(value) else f"'auto', or {JOBS(None)}"


def check_bool(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _are_names(names: Iterable[object]) -> bool:
    return all(isinstance(name, str) and name for name in names)


def check_task_types(value: object) -> str | None:
    if isinstance(value, Mapping) and _are_names(value) and all(map(is_type_name, value.values())):
        return None
    return f"a mapping of task name patterns to types, such as {{'proj.pdf.*': 'pdf'}}; a type is {ACCEPTED}"


def _check_mapping(accepted: str) -> NumberCheck:
    return lambda value: None if isinstance(value, Mapping) and _are_names(value) else accepted


check_task_rules = _check_mapping(
    "a mapping of task name patterns to rules, such as {'proj.route.*': {'exclusive': '{city}'}}"
)
check_recurring_calls = _check_mapping(
    "a mapping of names to calls, such as {'hh': {'task': 'proj.plan', 'stale_after': 300}}"
)


def check_queues(value: object) -> str | None:
    is_list = isinstance(value, list | tuple) and _are_names(value)
    return None if is_list else "a list of queue name patterns, such as ['pdf', 'reports.*']"


def check_seconds_or_none(value: object) -> str | None:
    return None if value in (None, NONE) or not SECONDS(value) else f"None, or {SECONDS(None)}"


JOBS = check_whole("a whole number, 0 or more", lambda value: value >= 0, 1000)
PERCENTAGE = check_whole("a whole number, 0 or more", lambda value: value >= 0, 100)
HALF_LIFE = is_number_between("0, or a number of seconds, 1 or more", lambda value: value == 0 or value >= 1)
POINTS = is_number_between(f"a number of points, -{_MAX_POINTS:,} or more", lambda _: True, _MAX_POINTS)
BONUS = is_number_between("a number of points, 0 or more", lambda value: value >= 0, _MAX_POINTS)
TIMES = is_number_between("a number of times, 0 or more", lambda value: value >= 0, 10**6)
POINTS_A_SECOND = is_number_between("a number of points a second, above 0", lambda value: value > 0, _MAX_POINTS)
MILLISECONDS = is_number_between("a number of milliseconds, 0 or more", lambda value: value >= 0, 500)
PREFIX = "affinity_"

#: Order of priorities in which 10 is the highest, as in server functions.
HIGHER_FIRST = "higher-first"

#: Value of ``affinity_tenant_turns`` that orders tenants by their used slot time.
SHARE = "share"

#: Lowest role that can see arguments, results and tracebacks over HTTP. Each role includes the rights of earlier ones.
SHOWN_TO = ("read", "submit", "admin", "nobody")


def _field(default: Any, **metadata: Any) -> Any:
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _setting(default: Any, check: NumberCheck) -> Any:
    """Return a setting that only the processes of an app read."""
    return _field(default, check=check, in_redis=None, at_run_time=False)


def _shared(default: Any, check: NumberCheck, *, in_us: bool = False, at_run_time: bool = True) -> Any:
    """Return a setting that server functions read (`wire`), in µs if *in_us*."""
    return _field(default, check=check, in_redis="_us" if in_us else "", at_run_time=at_run_time)


@dataclass(frozen=True)
class Settings:
    """Every setting, checked on creation. Raises SettingError with the setting, the accepted values and the value."""

    worker_timeout: float = _shared(30, SECONDS, in_us=True)
    """Seconds of silence after which the server declares a worker dead and makes its jobs pending again."""
    heartbeat_interval: float = _shared(5, SECONDS, in_us=True, at_run_time=False)
    """Seconds between two heartbeats of a worker, which report to the server that it is alive and which jobs it has."""
    guard: bool = _setting(True, check_bool)
    """Whether each worker has a guard: a small process that sends heartbeats and reports a dead worker immediately."""
    priority_order: str = _shared(HIGHER_FIRST, check_one_of(HIGHER_FIRST, "lower-first"))
    """Whether 10 or 0 is the highest priority. On stock Redis, 0 is the highest."""
    target_wait: float = _shared(256, SECONDS_OR_0, in_us=True)
    """Seconds after which a job without a due time is due to start. A job that is due earlier has a head start of the
    difference, as if it had been published earlier. 0: due times have no effect on the order."""
    stretch: float = _shared(0, TIMES)
    """A job is due to start after this many times its expected run time, at the latest after ``affinity_target_wait``.
    So short jobs run first. 0: run times have no effect on the order."""
    priority_percentage: int = _shared(100, PERCENTAGE)
    """Percentage of claims that take the job with the best score. The other claims take the oldest job."""
    priority_weight: float = _shared(1024, BONUS)
    """Points of the score for each step of priority."""
    age_weight: float = _shared(16, POINTS_A_SECOND)
    """Points for each second that a job has waited."""
    rarity_weight: float = _shared(500, BONUS)
    """Points for a job that only one slot fits. With several fitting slots, the points are divided by their number."""
    on_demand_weight: float = _shared(4096, BONUS)
    """Points for an on-demand job."""
    on_demand_age_weight: float = _shared(32, BONUS)
    """Additional points for each second that an on-demand job has waited, up to ``affinity_on_demand_age_cap``."""
    on_demand_age_cap: float = _shared(256, SECONDS_OR_0, in_us=True)
    """Age in seconds after which an on-demand job gains no more than a queued job, so queued jobs do not starve."""
    rarity: str = _shared("capacity", check_one_of("capacity", "free"))
    """Whether rarity counts all live slots that serve a type, or only the slots that are free now."""
    placement: str = _shared("idle", check_one_of("idle", WEIGHTED))
    """Which of the equally specialised workers with a free slot gets a job: the longest idle one, or the one with the
    most points by the three weights below."""
    placement_priority_weight: float = _shared(-10, POINTS)
    """Points for each step of a worker's priority: by default, the worker with the lower number is preferred."""
    placement_locality_weight: float = _shared(5, POINTS)
    """Points for a worker that holds the hint of the job."""
    placement_free_weight: float = _shared(1, POINTS)
    """Points for each free slot of a worker."""
    sample_size: int = _shared(10, JOBS)
    """Number of workers whose points are compared for one job, besides workers that hold its hint. 0: all of them."""
    locality_bonus: float = _shared(0, BONUS)
    """Points for a waiting job when a slot becomes free on a worker that holds its hint. 80 is worth 5 s of waiting."""
    worker_priority: int = _setting(0, placement_policy.check_worker_priority)
    """Priority of this app's workers for ``affinity_placement = "weighted"``; ``--affinity-priority`` overrides it."""
    max_deliveries: int = _shared(20, COUNT)
    """Number of failed deliveries after which a job is dead-lettered. A delivery fails if its worker or pool process
    dies, or if a hard time limit ends its run unacked."""
    max_requeues: int = _shared(1000, COUNT_OR_0)
    """Number of requeues (``Reject(requeue=True)``) of a job. The next one dead-letters the job."""
    requeue_delay_max: float = _shared(60, SECONDS_OR_0, in_us=True)
    """Maximum pause in seconds before a job runs again after a requeue, a hard time limit or the loss of its pool
    process: the pauses are 0, 1, 2, 4, 8 ... s. 0: no pauses."""
    dead_max: int = _shared(10_000, COUNT_OR_0)
    """Maximum number of dead letters. Beyond it, the oldest are deleted."""
    keep: float = _shared(
        ENDED_KEPT_S,
        is_number_between(
            f"a number of seconds, {ENDED_KEPT_S} or more", lambda value: value >= ENDED_KEPT_S, CONF_KEPT_S
        ),
        in_us=True,
    )
    """Seconds for which ended jobs are kept. They can be listed only if this is more than 60 s."""
    keep_max: int = _shared(10_000, COUNT_OR_0)
    """Maximum number of ended jobs that are kept for more than 60 s. Beyond it, the oldest are deleted."""
    keep_failed: bool = _shared(False, check_bool, at_run_time=False)
    """Whether a job whose task failed for good becomes a dead letter with its message, so that it can be run again."""
    limits: Mapping[str, Limit] | str = _shared({}, check_limits)
    """Pattern of keys, or ``type:`` and a type -> jobs that can run together; ``rate:`` and a pattern -> a rate.
    Overrides the limits of tasks."""
    tenants: Mapping[str, Tenant] | str = _shared({}, check_tenants)
    """Tenant -> quota: the number of its jobs that can run at the same time; ``*``: each tenant without an entry."""
    tenant_turns: str = _shared("age", check_one_of("age", SHARE))
    """Which of the jobs of one type, priority and mode runs first: the oldest, or the job of the tenant with the least
    used slot time relative to its weight."""
    tenant_half_life: float = _shared(0, HALF_LIFE, in_us=True)
    """Seconds after which the slot time that a tenant has used counts half, with ``affinity_tenant_turns="share"``.
    0: it always counts in full, so a tenant gains nothing by being idle."""
    inherit_tenant: bool = _setting(True, check_bool)
    """Whether calls published by a task belong to the task's tenant, if they name no other."""
    reserve: Mapping[str, Mapping[str, int | str]] | str = _shared({}, reserves.check_reserves)
    """Pattern of types -> class of jobs -> number or share of the fitting slots that jobs of the class leave free."""
    reserve_patience: float | str | None = _shared(None, check_seconds_or_none, in_us=True)
    """Age in seconds after which a job ignores reserves; None: never."""
    key_patience: float | str | None = _shared(30, check_seconds_or_none, in_us=True)
    """Seconds after which a key is reserved for a waiting type, if other types keep getting the key; None: never."""
    preemption_delay: float = _shared(20, SECONDS_OR_0, in_us=True)
    """Seconds that a job of a tenant below its minimum waits before it preempts a job of another tenant."""
    preemption_grace: float = _shared(10, SECONDS_OR_0, in_us=True)
    """Seconds in which the task of a preempted job must end by itself. After that, it is stopped by force."""
    preemption_exempt: float = _shared(60, SECONDS_OR_0, in_us=True)
    """Seconds for which a preempted job that runs again is not preempted; also the minimum time between two preemptions
    in one slot."""
    preemption_max: int = _shared(3, COUNT_OR_0)
    """Maximum number of times that a job is preempted. 0: never."""
    task_types: Mapping[str, str] = _setting({}, check_task_types)
    """Task name pattern -> type, for producers that do not have the tasks' code."""
    task_rules: Mapping[str, Affinity] = _setting({}, check_task_rules)
    """Task name pattern -> rules, for producers that do not have the tasks' code. The first matching pattern applies.

    A value has some of ``exclusive``, ``rate``, ``tenant``, ``preemptible``, ``locality``, ``size`` and ``merge``, like
    an `Affinity`, such as ``{"exclusive": "city:{city}"}``. Functions of ``merge`` are dotted names. ``{}``: no rules.
    """
    recurring: Mapping[str, Recurring] = _setting({}, check_recurring_calls)
    """Name -> recurring call, published when no matching call has become pending for ``stale_after`` seconds."""
    queues: Sequence[str] = _setting(("*",), check_queues)
    """Patterns of the queues to schedule: all queues by default. Unlisted queues keep Celery's stock behaviour."""
    cohorts: Mapping[str, cohort_settings.Cohort] = _setting({}, cohort_settings.check_cohorts)
    """Name -> types that are scheduled separately from all others, on their own server or shard of a cluster.

    ``{"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url="redis://other")}``. Other types are in ``default``.
    """
    ingest: bool = _setting(True, check_bool)
    """Whether workers take over and schedule messages that stock producers send to a scheduled queue."""
    max_pending: Mapping[str, Bound | int] = _setting({}, bounds.check_bounds)
    """Pattern of types -> maximum number of waiting jobs. Beyond it, calls are refused or jobs dropped (`Bound`)."""
    lookahead: int | str = _setting(AUTO, check_auto_or_jobs)
    """Maximum number of jobs that a worker holds beyond its slots, for very short tasks. ``"auto"``: jobs that are
    expected to take `lookahead_ms` in total. 0: each job is claimed when its slot is free."""
    lookahead_ms: float = _setting(20, MILLISECONDS)
    """Milliseconds of work that a worker holds beyond its slots with ``affinity_lookahead="auto"``."""
    traces: bool = _setting(False, check_bool)
    """Whether workers record each job's wait as an OpenTelemetry span. Requires the extra ``[otel]``."""
    record: float = _setting(0, SECONDS_OR_0)
    """Seconds for which workers record their claims, starting with the first worker. ``celery affinity lab record``
    fetches the trace. 0: none."""
    idempotency: float = _setting(86_400, SECONDS_FROM_1)
    """Seconds for which the HTTP server keeps an Idempotency-Key. A repeated request gets the first request's job."""
    show_values_to: str = _setting("admin", check_one_of(*SHOWN_TO))
    """Lowest role that sees arguments, results and tracebacks over HTTP and in the web UI. Commands have the role
    ``admin``: with ``nobody``, commands do not show them either."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            accepted = setting.metadata["check"](value)
            if accepted:
                raise SettingError(
                    f"{PREFIX}{setting.name} must be {accepted}, got: {printable(value, values.mask_password)}"
                )
        rules = {pattern: _rule(pattern, rule) for pattern, rule in self.task_rules.items()}
        object.__setattr__(self, "task_rules", rules)
        object.__setattr__(self, "cohorts", cohort_settings.cohort_map(self.cohorts))
        object.__setattr__(self, "recurring", {name: _call(name, call) for name, call in self.recurring.items()})
        if constants.is_timeout_too_short(self.worker_timeout, self.heartbeat_interval):
            raise SettingError(
                f"{PREFIX}heartbeat_interval must be at most half of {PREFIX}worker_timeout ({self.worker_timeout} s), "
                f"or one late heartbeat would look like a death, got: {printable(self.heartbeat_interval)}"
            )

    def schedules(self, queue: str) -> bool:
        """Return True if *queue* (a type) is scheduled."""
        return _matches(queue, tuple(self.queues))

    @property
    def cohort_map(self) -> cohort_settings.Patterns:
        return cohort_settings.map_text(self.cohorts)

    def cohort_of(self, type_: str) -> str:
        """Return the name of the cohort of *type_*. Raises SettingError if two cohorts match it."""
        return cohort_settings.cohort_of(type_, self.cohort_map) if self.cohorts else cohort_settings.DEFAULT


def _rule(pattern: str, value: object) -> Affinity:
    try:
        return affinity_of_pattern(value)
    except OptionError as exc:
        raise SettingError(f"{PREFIX}task_rules[{pattern!r}]: {exc}") from exc


def _call(name: str, value: object) -> Recurring:
    try:
        check_name(name)
        return as_recurring(value)
    except OptionError as exc:
        raise SettingError(f"{PREFIX}recurring[{name!r}]: {exc}") from exc


@lru_cache(maxsize=4096)
def _matches(queue: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(queue, pattern) for pattern in patterns)
