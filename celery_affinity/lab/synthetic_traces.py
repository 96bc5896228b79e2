"""Synthetic traces: a deterministic generator for examples, tests and measurements.

Arrivals follow a shortened day: their rate varies by 50 %. Durations have heavy tails (log-normal).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..clock import SECOND_US
from . import fast_engine
from .scenario import scenario_of
from .trace import DONE, Trace, TracedJob, TracedWorker


@dataclass(frozen=True)
class JobKind:
    """Jobs of one type."""

    type: str
    share: float  #: share of all arrivals
    median_s: float  #: median time in a slot
    sigma: float = 0.8  #: sigma of the log-normal times
    on_demand: float = 0.0  #: share of on-demand jobs
    priorities: Sequence[int] = (5,)
    tenants: Sequence[str | None] = (None,)


#: Kinds of a fleet that reads documents, some of them on demand.
KINDS = (
    JobKind("pdf", 0.55, 2.0, on_demand=0.2, priorities=(3, 5, 5, 8), tenants=("4f1a", "90cc", "b7e2")),
    JobKind("xls", 0.35, 0.8, on_demand=0.1, priorities=(5, 5, 8), tenants=("4f1a", "90cc", "b7e2")),
    JobKind("ocr", 0.10, 9.0, sigma=1.0, priorities=(3, 5), tenants=("4f1a", "b7e2")),
)
#: The default workers for these kinds.
WORKERS = (
    TracedWorker("w1@h", ("pdf",), 6),
    TracedWorker("w2@h", ("pdf", "xls"), 4),
    TracedWorker("w3@h", ("ocr", "pdf", "xls"), 4),
)


def make_arrivals(
    count: int, *, load: float = 0.95, seed: int = 1, kinds: Sequence[JobKind] = KINDS, slots: int = 14
) -> list[TracedJob]:
    """Return *count* unclaimed jobs, which would keep *load* of the *slots* busy on average."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    work_s = sum(kind.share * kind.median_s * math.exp(kind.sigma**2 / 2) for kind in kinds)
    gap_s = work_s / (load * slots)
    period_s = count * gap_s / 3
    jobs, now_s = [], 0.0
    for _ in range(count):
        swing = 1 + 0.5 * math.sin(2 * math.pi * now_s / period_s)
        now_s += rng.expovariate(swing / gap_s)
        jobs.append(_job(rng, kinds, round(now_s * SECOND_US)))
    return jobs


def _job(rng: random.Random, kinds: Sequence[JobKind], now_us: int) -> TracedJob:
    (kind,) = rng.choices(kinds, [kind.share for kind in kinds])
    took_us = max(1, round(rng.lognormvariate(math.log(kind.median_s), kind.sigma) * SECOND_US))
    return TracedJob(
        kind.type,
        now_us,
        now_us,
        on_demand=rng.random() < kind.on_demand,
        priority=rng.choice(kind.priorities),
        claimed_us=now_us,
        started_us=now_us,
        ended_us=now_us + took_us,
        tenant=rng.choice(kind.tenants),
    )


def make_unscheduled(count: int, *, load: float = 0.95, seed: int = 1) -> Trace:
    """Return a trace of jobs that start on arrival, regardless of the slots: input for an engine."""
    jobs = make_arrivals(count, load=load, seed=seed)
    return Trace(max(job.ended_us or 0 for job in jobs), WORKERS, tuple(jobs))


def make_trace(count: int, *, load: float = 0.95, seed: int = 1) -> Trace:
    """Return a trace of *count* jobs as a fleet runs them by the rules: a replay reproduces all of its claims."""
    made = make_unscheduled(count, load=load, seed=seed)
    jobs = list(made.jobs)
    for fence, run in enumerate(fast_engine.schedule_fast(scenario_of(made)).runs, 1):
        jobs[run.number] = replace(
            jobs[run.number],
            fence=fence,
            claimed_us=run.claimed_us,
            started_us=run.claimed_us,
            ended_us=run.ended_us,
            outcome=DONE,
            worker=run.worker,
        )
    return replace(made, jobs=tuple(jobs), length_us=max(job.ended_us or 0 for job in jobs))
