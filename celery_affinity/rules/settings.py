"""The settings of celery_affinity as an app says them: names, defaults, and what each accepts.

Settings stand in ``app.conf`` in lower case (``affinity_worker_timeout``) or, with a Celery namespace, as that
namespace has it (``CELERY_AFFINITY_WORKER_TIMEOUT``). Times are seconds, as in Celery. How Redis has the settings that
all processes share is the subject of `shared_settings`.
"""

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from ..errors import OptionError, SettingError
from . import bounds, heartbeats, reserves, spelling, worker_priority
from . import tenants as quotas
from .affinity import Affinity, affinity_of_pattern
from .bounds import Bound
from .keyed import key_limits
from .keyed.key_limits import NONE
from .numbers import is_whole
from .placement import WEIGHTED
from .protocol import CONF_KEPT_S, ENDED_KEPT_S
from .recurring import Recurring, as_recurring, check_name
from .tenants import Tenant
from .type_name import ACCEPTED, is_type

PREFIX = "affinity_"

_WORD = PREFIX.removesuffix("_")

#: Returns None for a value that is accepted; else what is accepted, in words.
Check = Callable[[object], str | None]

Value = float | str

#: Some 3,000 years: in µs it has fewer digits than a number that arrows read.
_LONGEST_HALF_LIFE_S = 10**11

#: Value of ``affinity_lookahead``: by how long tasks take.
AUTO = "auto"

#: The order of priorities in which 10 is the highest, as the arrows have it.
HIGHER_FIRST = "higher-first"


#: Value of ``affinity_tenant_turns``: by the time of slots that each tenant has used.
SHARE = "share"

#: Who may see arguments, results and tracebacks: the roles over HTTP, each with the rights of those before it; nobody.
SHOWN_TO = ("read", "submit", "admin", "nobody")


def _number(accepted: str, test: Callable[[float], bool]) -> Check:
    def check(value: object) -> str | None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and test(value)
        return None if good else accepted

    return check


def _none_or_second(seconds: float) -> bool:
    return seconds == 0 or 1 <= seconds <= _LONGEST_HALF_LIFE_S


def _whole(accepted: str, test: Callable[[int], bool]) -> Check:
    def check(value: object) -> str | None:
        good = is_whole(value) and test(value)
        return None if good else accepted

    return check


def _one_of(*names: str) -> Check:
    accepted = " or ".join(repr(name) for name in names)
    return lambda value: None if value in names else accepted


def _auto_or_jobs(value: object) -> str | None:
    return None if value == AUTO or not _JOBS(value) else "'auto', or a whole number from 0 to 1000"


def _yes_or_no(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _task_types(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(
        isinstance(pattern, str) and pattern and is_type(type_) for pattern, type_ in value.items()
    )
    return (
        None
        if good
        else f"a mapping of task name patterns to types, such as {{'proj.pdf.*': 'pdf'}}; a type is {ACCEPTED}"
    )


def _task_rules(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(isinstance(pattern, str) and pattern for pattern in value)
    return (
        None if good else "a mapping of task name patterns to rules, such as {'proj.route.*': {'exclusive': '{city}'}}"
    )


def _recurring(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(isinstance(name, str) and name for name in value)
    return None if good else "a mapping of names to calls, such as {'hh': {'task': 'proj.plan', 'stale_after': 300}}"


def _queues(value: object) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)
    return None if good else "a list of queue name patterns, such as ['pdf', 'reports.*']"


def _seconds_or_none(value: object) -> str | None:
    return None if value in (None, NONE) or not _SECONDS(value) else "a number of seconds above 0, or None"


_JOBS = _whole("a whole number from 0 to 1000", lambda value: 0 <= value <= 1000)
_SECONDS = _number("a number of seconds above 0", lambda value: value > 0)
_SECONDS_OR_0 = _number("a number of seconds, 0 or more", lambda value: value >= 0)
_POINTS = _number("a number of points from -1000000 to 1000000", lambda value: abs(value) <= 10**6)
_BONUS = _number("a number of points from 0 to 1000000", lambda value: 0 <= value <= 10**6)
_WEIGHT = _number("a number of points, 0 or more", lambda value: value >= 0)


def _setting(default: Any, check: Check) -> Any:
    """A setting of the processes of an app."""
    return field(default=default, metadata={"check": check, "in_redis": None, "at_run_time": False})


def _shared(default: Any, check: Check, *, in_us: bool = False, at_run_time: bool = True) -> Any:
    """A setting that the arrows read (`shared_settings`), in µs if *in_us*; changeable *at_run_time*, or not."""
    return field(
        default=default, metadata={"check": check, "in_redis": "_us" if in_us else "", "at_run_time": at_run_time}
    )


@dataclass(frozen=True)
class Settings:
    """Every setting, checked when built. Raises SettingError with the setting, what it accepts and what came."""

    worker_timeout: float = _shared(30, _SECONDS, in_us=True)
    """Seconds of silence after which the server declares a worker dead and makes its jobs pending again."""
    heartbeat_interval: float = _shared(5, _SECONDS, in_us=True, at_run_time=False)
    """Seconds between two heartbeats of a worker, which tell the server that the worker lives and which jobs it has."""
    guard: bool = _setting(True, _yes_or_no)
    """Whether each worker has a guard: a small process that sends heartbeats and reports the worker's death at once."""
    priority_order: str = _shared(HIGHER_FIRST, _one_of(HIGHER_FIRST, "lower-first"))
    """Whether 10 or 0 is the highest priority. On stock Redis, 0 is the highest."""
    priority_percentage: int = _shared(100, _whole("a whole number from 0 to 100", lambda value: 0 <= value <= 100))
    """Percentage of claims that take the job with the best score. The other claims take the oldest job."""
    priority_weight: float = _shared(1024, _WEIGHT)
    """Points of the score for each step of priority."""
    age_weight: float = _shared(16, _number("a number of points a second, above 0", lambda value: value > 0))
    """Points for each second that a job has waited."""
    rarity_weight: float = _shared(500, _WEIGHT)
    """Points for a job that only one slot fits. With several fitting slots, the points are divided by their number."""
    on_demand_weight: float = _shared(4096, _WEIGHT)
    """Points for an on-demand job."""
    on_demand_age_weight: float = _shared(32, _WEIGHT)
    """Additional points for each second that an on-demand job has waited, up to ``affinity_on_demand_age_cap``."""
    on_demand_age_cap: float = _shared(
        256, _number("a number of seconds, 0 or more", lambda value: value >= 0), in_us=True
    )
    """Age in seconds after which an on-demand job gains no more than a queued job, so queued jobs do not starve."""
    rarity: str = _shared("capacity", _one_of("capacity", "free"))
    """Whether rarity counts all live slots that serve a type, or only the slots that are free now."""
    placement: str = _shared("idle", _one_of("idle", WEIGHTED))
    """Of the equally specialised workers with a free slot: whether a job goes to the one that is idle longest, or to
    the one with the most points by the three weights below."""
    placement_priority_weight: float = _shared(-10, _POINTS)
    """Points for each step of a worker's priority: by default, the worker with the lower number is preferred."""
    placement_locality_weight: float = _shared(5, _POINTS)
    """Points for a worker that holds the hint of the job."""
    placement_free_weight: float = _shared(1, _POINTS)
    """Points for each free slot of a worker."""
    sample_size: int = _shared(10, _whole("a whole number from 0 to 1000", lambda value: 0 <= value <= 1000))
    """Number of workers whose points are compared for one job, besides those that hold its hint. 0: all of them."""
    locality_bonus: float = _shared(0, _BONUS)
    """Points for a waiting job when a slot comes free on a worker that holds its hint. 80 is worth 5 s of waiting."""
    worker_priority: int = _setting(0, worker_priority.check)
    """Priority of this app's workers for ``affinity_placement = "weighted"``; ``--affinity-priority`` overrides it."""
    max_deliveries: int = _shared(20, _whole("a whole number above 0", lambda value: value > 0))
    """Number of failed deliveries after which a job is a dead letter: its worker died, or gave the job back unacked."""
    dead_max: int = _shared(10_000, _whole("a whole number, 0 or more", lambda value: value >= 0))
    """Largest number of dead letters. Beyond it the oldest are deleted."""
    keep: float = _shared(
        ENDED_KEPT_S,
        _number(
            f"a number of seconds from {ENDED_KEPT_S} to {CONF_KEPT_S:,}",
            lambda value: ENDED_KEPT_S <= value <= CONF_KEPT_S,
        ),
        in_us=True,
    )
    """Seconds for which ended jobs are remembered. Only with more than 60 s can they also be listed."""
    keep_max: int = _shared(10_000, _whole("a whole number, 0 or more", lambda value: value >= 0))
    """Largest number of ended jobs that are remembered for longer than 60 s. Beyond it the oldest are forgotten."""
    keep_failed: bool = _shared(False, _yes_or_no, at_run_time=False)
    """Whether a job whose task failed for good becomes a dead letter with its message, so that it can be run again."""
    limits: Mapping[str, key_limits.Limit] | str = field(
        default_factory=dict, metadata={"check": key_limits.check, "in_redis": "", "at_run_time": True}
    )
    """Pattern of keys, or ``type:`` and a type -> jobs that may run at a time; ``rate:`` and a pattern -> a rate.

    Overrides what tasks say.
    """
    tenants: Mapping[str, Tenant] | str = field(
        default_factory=dict, metadata={"check": quotas.check, "in_redis": "", "at_run_time": True}
    )
    """Tenant -> its quota: how many of its jobs may run at a time; ``*``: that of each tenant that is not named."""
    tenant_turns: str = _shared("age", _one_of("age", SHARE))
    """Of the jobs of one type, priority and mode: whether the oldest goes first, or that of the tenant which has used
    the least time of slots by its weight."""
    tenant_half_life: float = _shared(0, _number("0, or a number of seconds, 1 or more", _none_or_second), in_us=True)
    """Seconds in which the time of slots that a tenant has used comes to count half, with ``"share"`` as
    ``affinity_tenant_turns``. 0: it counts in full, and idleness earns nothing."""
    inherit_tenant: bool = _setting(True, _yes_or_no)
    """Whether what a task publishes belongs to the tenant on whose behalf the task runs, if it names no other."""
    reserve: Mapping[str, Mapping[str, int | str]] | str = field(
        default_factory=dict, metadata={"check": reserves.check, "in_redis": "", "at_run_time": True}
    )
    """Pattern of types -> class of jobs -> number or share of the fitting slots that jobs of the class leave free."""
    reserve_patience: float | str | None = _shared(None, _seconds_or_none, in_us=True)
    """Age in seconds after which a job ignores reserves; None: never."""
    key_patience: float | str | None = _shared(30, _seconds_or_none, in_us=True)
    """Seconds after which a key is reserved for a waiting type, if other types keep getting the key; None: never."""
    preemption_delay: float = _shared(20, _SECONDS_OR_0, in_us=True)
    """Seconds that a job of a tenant below its minimum waits before a job of another tenant is stopped for it."""
    preemption_grace: float = _shared(10, _SECONDS_OR_0, in_us=True)
    """Seconds that a task has to end by itself when its job is to be stopped. Then it is ended by force."""
    preemption_exempt: float = _shared(60, _SECONDS_OR_0, in_us=True)
    """Seconds for which a job that was stopped, once it runs again, is not stopped; and the shortest time between two
    stops in one slot."""
    preemption_max: int = _shared(3, _whole("a whole number, 0 or more", lambda value: value >= 0))
    """Largest number of times that a job is stopped. 0: none ever is."""
    task_types: Mapping[str, str] = field(
        default_factory=dict, metadata={"check": _task_types, "in_redis": None, "at_run_time": False}
    )
    """Task name pattern -> type, for producers that do not have the tasks' code."""
    task_rules: Mapping[str, Affinity] = field(
        default_factory=dict, metadata={"check": _task_rules, "in_redis": None, "at_run_time": False}
    )
    """Task name pattern -> rules, for producers that do not have the tasks' code. The first matching pattern counts.

    A value has some of ``exclusive``, ``rate``, ``tenant``, ``preemptible``, ``locality`` and ``merge``, as in an
    `Affinity`, such as ``{"exclusive": "city:{city}"}``. Functions of ``merge`` are dotted names. ``{}`` means no
    rules.
    """
    recurring: Mapping[str, Recurring] = field(
        default_factory=dict, metadata={"check": _recurring, "in_redis": None, "at_run_time": False}
    )
    """Name -> recurring call: it is made when no matching call has become pending for ``stale_after`` seconds."""
    queues: Sequence[str] = _setting(("*",), _queues)
    """Patterns of the queues to schedule: all queues by default. Unlisted queues keep Celery's stock behaviour."""
    ingest: bool = _setting(True, _yes_or_no)
    """Whether workers take over and schedule messages that stock producers send to a scheduled queue."""

    max_pending: Mapping[str, Bound | int] = field(
        default_factory=dict, metadata={"check": bounds.check, "in_redis": None, "at_run_time": False}
    )
    """Pattern of types -> number of jobs that may wait. Beyond it, a call is refused or a job is dropped (`Bound`)."""

    lookahead: int | str = _setting(AUTO, _auto_or_jobs)
    """Number of jobs that a worker holds beyond its slots, for very short tasks. ``"auto"``: as many as are expected to
    take `lookahead_ms`. 0: none, so that each job is claimed when its slot is free."""

    lookahead_ms: float = _setting(20, _number("a number of milliseconds from 0 to 500", lambda ms: 0 <= ms <= 500))
    """Milliseconds of work that a worker holds beyond its slots with ``affinity_lookahead="auto"``."""

    traces: bool = _setting(False, _yes_or_no)
    """Whether workers record the wait of each job as a span of OpenTelemetry; this needs the extra ``[otel]``."""

    record: float = _setting(0, _number("a number of seconds, 0 or more", lambda value: value >= 0))
    """Seconds for which workers record their claims, from the start of the first worker on: ``celery affinity lab
    record`` fetches the trace. 0: none."""

    idempotency: float = _setting(86_400, _number("a number of seconds, 1 or more", lambda value: value >= 1))
    """Seconds for which the HTTP server remembers an Idempotency-Key. A repeated request gets the first one's job."""

    show_values_to: str = _setting("admin", _one_of(*SHOWN_TO))
    """The lowest role that sees arguments, results and tracebacks over HTTP and on the page. Commands have the role
    ``admin``: with ``nobody`` no command shows them either."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            accepted = each.metadata["check"](value)
            if accepted:
                raise SettingError(f"{PREFIX}{each.name} must be {accepted}, got: {value!r}")
        object.__setattr__(
            self, "task_rules", {pattern: _rule(pattern, rule) for pattern, rule in self.task_rules.items()}
        )
        object.__setattr__(self, "recurring", {name: _call(name, said) for name, said in self.recurring.items()})
        if heartbeats.is_too_short(self.worker_timeout, self.heartbeat_interval):
            raise SettingError(
                f"{PREFIX}heartbeat_interval must be at most half of {PREFIX}worker_timeout ({self.worker_timeout} s), "
                f"or one late heartbeat would look like a death, got: {self.heartbeat_interval!r}"
            )

    def schedules(self, queue: str) -> bool:
        """Return whether *queue* (a type) is scheduled."""
        return _matches(queue, tuple(self.queues))


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


_FIELDS = {each.name: each for each in fields(Settings)}

#: Names of the settings that can be changed at run time.
CHANGEABLE = tuple(name for name, each in _FIELDS.items() if each.metadata["at_run_time"])


def accepted_instead(name: str, value: object) -> str | None:
    """Return None if the setting *name* accepts *value*; else what is accepted, in words."""
    check: Check = _FIELDS[name].metadata["check"]
    return check(value)


def parse_change(word: str, text: str) -> tuple[str, Value]:
    """Return name and value, checked, of a setting that somebody wants to change at run time, as they typed it.

    *word* may begin with ``affinity_``. Raises SettingError for a setting that cannot be changed at run time, and for a
    value that it does not accept.
    """
    name = changeable(word)
    value = text if isinstance(_FIELDS[name].default, str) else number_or_text(text)
    accepted = accepted_instead(name, value)
    if accepted:
        raise SettingError(f"{PREFIX}{name} must be {accepted}, got: {text!r}")
    return name, value


def changeable(word: str) -> str:
    """Return the name of the setting *word*, which may begin with ``affinity_``.

    Raises SettingError if no setting of this name can be changed at run time.
    """
    name = word.lower().removeprefix(PREFIX)
    if name in CHANGEABLE:
        return name
    if name in _FIELDS:
        raise SettingError(
            f"{PREFIX}{name} can only be set in app.conf; changeable at run time: {', '.join(CHANGEABLE)}"
        )
    raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")


def load(conf: Mapping[str, object], known: Iterable[str]) -> Settings:
    """Return the settings in *conf*, an ``app.conf``; *known* are the keys to look at, in any case.

    Raises SettingError for a key that begins with ``affinity_`` and is no setting of ours.
    """
    given: dict[str, Any] = {}
    for key in known:
        _, prefix, name = key.lower().rpartition(PREFIX)
        if not prefix:
            _check_prefix(key)
            continue
        if name not in _FIELDS:
            raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")
        given[name] = conf[key]
    return Settings(**given)


def _check_prefix(key: str) -> None:
    """Raise SettingError if *key* is close to a setting of ours, and ``affinity_`` itself is misspelt in it."""
    words = key.lower().replace("-", "_").split("_")
    for i, word in enumerate(words):
        glued = word.startswith(_WORD) and word != _WORD  # affinityqueues
        if glued or word == _WORD or spelling.meant(word, (_WORD,)):
            name = "_".join([*([word.removeprefix(_WORD)] if glued else ()), *words[i + 1 :]])
            close = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.8)
            if close:
                raise SettingError(f"unknown setting {key!r}; did you mean {PREFIX + close[0]!r}?")


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, _FIELDS, n=1)
    return f"; did you mean {PREFIX + close[0]!r}?" if close else ""


def number_or_text(text: str) -> Value:
    """Return the number that *text* is; *text* if there is none."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
