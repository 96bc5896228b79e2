"""The settings of celery_affinity: names, defaults, and what each accepts.

They stand in ``app.conf`` in lower case (``affinity_worker_timeout``) or, with a Celery namespace, as that namespace
has it (``CELERY_AFFINITY_WORKER_TIMEOUT``). Times are seconds, as in Celery.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .errors import SettingError
from .score import MICRO, Weights

PREFIX = "affinity_"

#: A check returns what is accepted, in words, if the value is not.
Check = Callable[[object], str | None]


def _number(accepted: str, test: Callable[[float], bool]) -> Check:
    def check(value: object) -> str | None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and test(value)
        return None if good else accepted

    return check


def _whole(accepted: str, test: Callable[[int], bool]) -> Check:
    def check(value: object) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and test(value)
        return None if good else accepted

    return check


def _one_of(*names: str) -> Check:
    accepted = " or ".join(repr(name) for name in names)
    return lambda value: None if value in names else accepted


def _yes_or_no(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _task_types(value: object) -> str | None:
    good = isinstance(value, Mapping) and all(isinstance(part, str) and part for pair in value.items() for part in pair)
    return None if good else "a mapping of task name patterns to types, such as {'proj.pdf.*': 'pdf'}"


_SECONDS = _number("a number of seconds above 0", lambda value: value > 0)
_WEIGHT = _number("a number of points, 0 or more", lambda value: value >= 0)


def _setting(default: Any, check: Check) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class Settings:
    """Every setting, checked when built. Raises SettingError with the setting, what it accepts and what came."""

    worker_timeout: float = _setting(30, _SECONDS)
    """A worker that was not heard of for so long is dead: its jobs are pending again."""
    heartbeat_interval: float = _setting(5, _SECONDS)
    """A worker says so often that it lives, and which jobs it holds."""
    guard: bool = _setting(True, _yes_or_no)
    """Whether a small process of its own beats for each worker, and reports its death at once."""
    priority_order: str = _setting("higher-first", _one_of("higher-first", "lower-first"))
    """Whether 10 or 0 is the highest priority; stock Redis has 0."""
    priority_weight: float = _setting(1024, _WEIGHT)
    age_weight: float = _setting(16, _number("a number of points a second, above 0", lambda value: value > 0))
    rarity_weight: float = _setting(500, _WEIGHT)
    on_demand_weight: float = _setting(4096, _WEIGHT)
    on_demand_age_weight: float = _setting(32, _WEIGHT)
    on_demand_age_cap: float = _setting(256, _number("a number of seconds, 0 or more", lambda value: value >= 0))
    """From this age on an on-demand job gains no more than a queued one: what keeps queued jobs from starving."""
    rarity: str = _setting("capacity", _one_of("capacity", "free"))
    """Whether rarity counts the live slots that serve a type, or the slots free now."""
    max_deliveries: int = _setting(20, _whole("a whole number above 0", lambda value: value > 0))
    """A job that came back so often (its worker died each time) goes to the dead letters."""
    dead_max: int = _setting(10_000, _whole("a whole number, 0 or more", lambda value: value >= 0))
    """Dead letters kept; the oldest go first."""
    task_types: Mapping[str, str] = field(default_factory=dict, metadata={"check": _task_types})
    """Task name pattern -> type, for producers that do not have the tasks' code."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            accepted = each.metadata["check"](value)
            if accepted:
                raise SettingError(f"{PREFIX}{each.name} must be {accepted}, got: {value!r}")
        if self.heartbeat_interval * 2 > self.worker_timeout:
            raise SettingError(
                f"{PREFIX}heartbeat_interval must be at most half of {PREFIX}worker_timeout ({self.worker_timeout} s), "
                f"or one late beat looks like death, got: {self.heartbeat_interval!r}"
            )

    @property
    def weights(self) -> Weights:
        return Weights(
            priority=self.priority_weight,
            age=self.age_weight,
            rarity=self.rarity_weight,
            on_demand=self.on_demand_weight,
            on_demand_age=self.on_demand_age_weight,
            on_demand_age_cap_us=round(self.on_demand_age_cap * MICRO),
        )

    def shared(self) -> dict[str, str]:
        """Return the settings that the scripts read, by their name in Redis; times in µs."""
        values = asdict(self)
        return {
            "worker_timeout_us": str(round(self.worker_timeout * MICRO)),
            "heartbeat_interval_us": str(round(self.heartbeat_interval * MICRO)),
            "on_demand_age_cap_us": str(self.weights.on_demand_age_cap_us),
            **{name: repr(values[name]) for name in _SHARED_AS_THEY_ARE},
            "rarity": self.rarity,
        }


_SHARED_AS_THEY_ARE = (
    "priority_weight",
    "age_weight",
    "rarity_weight",
    "on_demand_weight",
    "on_demand_age_weight",
    "max_deliveries",
    "dead_max",
)

NAMES = tuple(each.name for each in fields(Settings))


def load(conf: Mapping[str, Any], known: Iterable[str]) -> Settings:
    """Return the settings in *conf*, an ``app.conf``; *known* are the keys to look at, in any case.

    Raises SettingError for a key that begins with ``affinity_`` and is no setting of ours.
    """
    given = {}
    for key in known:
        _, prefix, name = key.lower().rpartition(PREFIX)
        if not prefix:
            continue
        if name not in NAMES:
            raise SettingError(f"unknown setting {PREFIX + name!r}{_did_you_mean(name)}")
        given[name] = conf[key]
    return Settings(**given)


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, NAMES, n=1)
    return f"; did you mean {PREFIX + close[0]!r}?" if close else ""


def lua_source() -> str:
    """Return the Lua function that reads the settings in force: the defaults, overlaid with those in Redis."""
    shared = Settings().shared()
    defaults = "".join(f"        {name} = {_lua_value(value)},\n" for name, value in shared.items())
    return (
        "local function read_settings()\n"
        "    local settings = {\n"
        f"{defaults}"
        "    }\n"
        '    local given = redis.call("HGETALL", key.settings)\n'
        "    for i = 1, #given, 2 do\n"
        "        settings[given[i]] = tonumber(given[i + 1]) or given[i + 1]\n"
        "    end\n"
        "    return settings\n"
        "end\n"
    )


def _lua_value(value: str) -> str:
    return value if value.replace(".", "", 1).isdigit() else f'"{value}"'
