"""The performance goals, relative to stock Celery with the same guarantees."""

from collections.abc import Callable
from dataclasses import dataclass

from celery_affinity.settings.table import AUTO

from .in_turns import KEYED, METRICS, OF_TENANTS, goal_of
from .load import LOAD
from .observers import OBSERVERS, USUAL_TYPES
from .on_cluster import cost as cost_of_cluster
from .recording import RECORDED
from .results import Part, Results, figure, ratio
from .sharing import Sharer
from .systems import (
    AFFINITY,
    AWAY_MS,
    DRAMATIQ,
    LOOKAHEAD,
    MERGED,
    SLOTS,
    STOCK,
    WAITING_THREADS,
    Variant,
    waiting_variants,
)
from .viewers import BY_ID, VIEWERS, viewers_name

Reached = Callable[[Results], float | None]


@dataclass(frozen=True)
class Goal:
    """A lower or upper limit for a number from the results."""

    name: str
    #: Function that computes the number from the results.
    reached: Reached
    limit: float
    #: True if *limit* is a lower limit, False if it is an upper limit.
    at_least: bool
    unit: str = "x"
    #: Description of the baseline.
    note: str = ""

    @property
    def wanted(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}".strip()

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


def at_least(limit: float, name: str, reached: Reached, unit: str = "x", note: str = "") -> Goal:
    return Goal(name, reached, limit, True, unit, note)


def at_most(limit: float, name: str, reached: Reached, unit: str = "x", note: str = "") -> Goal:
    return Goal(name, reached, limit, False, unit, note)


def _strict(pool: str) -> str:
    return Variant(AFFINITY, pool).name


def _ahead(pool: str) -> str:
    return Variant(AFFINITY, pool, lookahead=LOOKAHEAD).name


def _default(pool: str, late: bool = False, away_ms: float = 0) -> str:
    return Variant(AFFINITY, pool, late, lookahead=AUTO, away_ms=away_ms).name


def _stocks_default(pool: str, late: bool = False, away_ms: float = 0) -> str:
    return Variant(STOCK, pool, late, away_ms=away_ms).name


def _stock(pool: str, prefetch: int | None = 1) -> str:
    return Variant(STOCK, pool, prefetch=prefetch).name


def _of_waiting(late: bool) -> tuple[Variant, Variant]:
    variants = [variant for variant in waiting_variants() if variant.late == late]
    ours = next(variant for variant in variants if variant.system == AFFINITY)
    return ours, next(variant for variant in variants if variant.system == STOCK)


def _server_cpu(results: Results) -> float | None:
    """Return the ratio of our server time to stock's, for publishing and running a task."""
    times_us = [
        figure(part, "server_us", subject)(results)
        for part, subject in (
            ("publish", f"{AFFINITY}, delay"),
            ("drain", _strict("solo")),
            ("publish", f"{STOCK}, delay"),
            ("drain", _stock("solo")),
        )
    ]
    measured_us = [time_us for time_us in times_us if time_us is not None]
    return sum(measured_us[:2]) / sum(measured_us[2:]) if len(measured_us) == len(times_us) else None


#: Allowance for background requests, in requests per task. A worker sends a few per second, regardless of its load.
_BACKGROUND = 0.05

_SAME = "late acks, prefetch 1"
_AHEAD_SAME = "late acks, default prefetch"
_DEFAULTS = {False: "its default settings", True: "late acks, other settings default"}

DRAINING = (
    at_least(2.5, "drain, solo, one job per slot", ratio("drain", "rate", _strict("solo"), _stock("solo")), note=_SAME),
    at_least(4, "drain, threads 8", ratio("drain", "rate", _strict("threads"), _stock("threads")), note=_SAME),
    at_least(
        1,
        "drain, threads 8, against dramatiq's",
        ratio("drain", "rate", _strict("threads"), Variant(DRAMATIQ, "threads").name),
        note="dramatiq, 8 threads",
    ),
    at_least(
        2.3,
        "drain, prefork 2, one job per slot",
        ratio("drain", "rate", _strict("prefork"), _stock("prefork")),
        note=_SAME,
    ),
    *(
        at_least(
            3,
            f"drain, {pool}, look-ahead {LOOKAHEAD}",
            ratio("drain", "rate", _ahead(pool), _stock(pool, None)),
            note=_AHEAD_SAME,
        )
        for pool in ("solo", "prefork")
    ),
    *(
        at_least(
            limit,
            f"drain, {pool}, default settings{', late acks' if late else ''}",
            ratio("drain", "rate", _default(pool, late), _stocks_default(pool, late)),
            note=_DEFAULTS[late],
        )
        for pool, limit in (("solo", 3.4), ("threads", 4.4), ("prefork", 2.8))
        for late in (False, True)
    ),
    *(
        at_least(
            limit,
            f"drain, {pool}, default settings, {AWAY_MS:g} ms away",
            ratio("away", "rate", _default(pool, True, AWAY_MS), _stocks_default(pool, True, AWAY_MS)),
            note=_DEFAULTS[True],
        )
        for pool, limit in (("solo", 3.4), ("prefork", 2.8))
    ),
    *(
        at_least(
            0.8,
            f"drain, {subject.pool}, {subject.what}",
            goal_of("keys", subject),
            note="jobs without keys",
        )
        for subject in KEYED
    ),
    *(
        at_least(
            0.9,
            f"drain, {subject.pool}, {subject.what}",
            goal_of("tenants", subject),
            note="jobs without tenants",
        )
        for subject in OF_TENANTS
    ),
    *(
        at_least(
            0.98,
            f"drain, {subject.pool}, metrics of types",
            goal_of("metrics", subject),
            note="without metrics",
        )
        for subject in METRICS
    ),
    *(
        at_least(
            0.98,
            f"drain, {subject.pool}, recorded for the lab",
            ratio("recording", "rate", subject.name, subject.baseline),
            note="not recorded",
        )
        for subject in RECORDED
    ),
    at_most(1.05, "CPU time of a task on a cluster, solo", cost_of_cluster, note="on a server"),
    at_most(1 + _BACKGROUND, "requests a task, solo", figure("drain", "requests", _strict("solo")), "requests"),
    at_most(
        0.2,
        f"requests a task, solo, look-ahead {LOOKAHEAD}",
        figure("drain", "requests", _ahead("solo")),
        "requests",
    ),
)

PUBLISHING = (
    at_least(1.35, "publish, delay", ratio("publish", "rate", f"{AFFINITY}, delay", f"{STOCK}, delay")),
    at_least(
        2.4, "publish, Celery's batch", ratio("publish", "rate", f"{AFFINITY}, batch", f"{STOCK}, delay"), note="delay"
    ),
    at_least(
        6,
        "publish, publish_many",
        ratio("publish", "rate", f"{AFFINITY}, publish_many", f"{STOCK}, delay"),
        note="delay",
    ),
    *(
        at_least(
            limit,
            f"publish, {way}",
            ratio("publish", "rate", f"{AFFINITY}, {way}", f"{AFFINITY}, delay"),
            note="our own delay",
        )
        for way, limit in ((MERGED["own_key"], 0.77), (MERGED["one_key"], 0.67))  # 1.3 and 1.5 times as long
    ),
    at_least(1_500, "results shared", figure("sharing", "rate", Sharer().name), "a second", "1,000 callers, on Redis"),
    at_most(1, "server CPU, publish to ack, solo", _server_cpu, note=_SAME),
)

WAITING = (
    *(
        at_most(limit, f"idle latency, {pool}, {figure}", ratio("latency", figure, _strict(pool), _stock(pool)))
        for figure, limit in (("p50", 0.65), ("p99", 0.7))
        for pool in SLOTS
    ),
    *(
        at_most(2, f"requests of an idle worker, {pool}", figure("idle", "requests", _strict(pool)), "a second")
        for pool in SLOTS
    ),
    at_most(
        20,
        f"on-demand p99 at {LOAD:.0%} load, beyond a task's length",
        figure("load", "beyond", _strict("prefork")),
        "ms",
    ),
    at_most(
        25,
        f"on-demand p99 at {LOAD:.0%} load, default settings, beyond a task's length",
        figure("load", "beyond", _default("prefork", late=True)),
        "ms",
    ),
    at_least(0.85, "slots used by tasks of 10 ms, prefork 2", figure("slots", "used", _strict("prefork")), ""),
    *(
        at_least(
            1,
            f"slots used by tasks of 10 ms, prefork 2, default settings{', late acks' if late else ''}",
            ratio("slots", "used", _default("prefork", late), _stocks_default("prefork", late)),
            note=_DEFAULTS[late],
        )
        for late in (False, True)
    ),
    *(
        at_least(
            1,
            f"slots used by waits of 100 ms, {WAITING_THREADS} threads, defaults{', late acks' if late else ''}",
            ratio("waits", "used", ours.name, stocks.name),
            note=_DEFAULTS[late],
        )
        for late in (False, True)
        for ours, stocks in [_of_waiting(late)]
    ),
)


def _longest(results: Results) -> float | None:
    part = results.get("scripts")
    return max(part.median(name, part.names()[0]) or 0 for name in part.figures) if part else None


def _look(observer: str) -> Reached:
    """Return a function that finds an observer's median time in ms at the maximum number of pending jobs."""
    of_types = f" of {USUAL_TYPES:,} types"

    def reached(results: Results) -> float | None:
        part = results.get("observers", Part())
        return next(
            (
                part.median(name, "median_ms")
                for name in part.figures
                if name.startswith(f"{observer}, ") and name.endswith(of_types)
            ),
            None,
        )

    return reached


def _longest_command(results: Results) -> float | None:
    part = results.get("observers", Part())
    return max((part.median(name, "command_ms") or 0 for name in part.figures), default=None)


AT_SCALE = (
    at_most(5, "longest script call at the most pending jobs", _longest, "ms"),
    at_most(
        1.3,
        "release and claim, 1,000,000 pending against 1,000",
        ratio("arrows", "release + claim", "pending 1,000,000", "pending 1,000"),
        note="",
    ),
    at_most(
        2, "release and claim, 50 types served against 3", ratio("arrows", "release + claim", "served 50", "served 3")
    ),
    at_most(
        1.25,
        "release and claim, jobs with 1,000 keys against none",
        ratio("arrows", "release + claim", "keys 1,000", "keys 0"),
    ),
    *(
        at_most(50, f"{observer} at the most pending jobs, {USUAL_TYPES} types", _look(observer), "ms")
        for observer in OBSERVERS
    ),
    *(
        at_most(
            1, f"the broker's core, {viewers_name(number)}", figure("page", "broker_percent", viewers_name(number)), "%"
        )
        for number in VIEWERS
    ),
    at_least(1_000, "jobs by id over HTTP", figure("page", "rate_of_a_core", BY_ID), "a second", "of one core"),
    at_most(1, "longest command of an observer on the server", _longest_command, "ms"),
    *(
        at_most(
            1.5,
            f"memory of a pending job, {server}",
            ratio("memory", "bytes", f"{server}, {AFFINITY}", f"{server}, {STOCK}"),
        )
        for server in ("valkey", "redis")
    ),
)

SAFE = tuple(
    at_most(0, f"tasks lost in 50 kills, {pool}", figure("loss", "lost", _strict(pool)), "tasks", _SAME)
    for pool in ("solo", "prefork")
)

GOALS = (*DRAINING, *PUBLISHING, *WAITING, *AT_SCALE, *SAFE)
