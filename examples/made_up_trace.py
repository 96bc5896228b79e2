"""Generates a synthetic trace for experiments with the lab: ``python -m examples.made_up_trace FILE [JOBS]``.

Equal arguments generate equal traces. The arrival rate varies by 50 %, like three shortened days. Durations are
log-normal, so they have a heavy tail.
"""

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from celery_affinity.clock import SECOND_US
from celery_affinity.lab import fast_engine
from celery_affinity.lab.scenario import Schedule, scenario_of
from celery_affinity.lab.trace import DONE, Trace, TracedJob, TracedWorker
from celery_affinity.lab.trace_file import write_trace


@dataclass(frozen=True)
class JobKind:
    """Jobs of one type."""

    type: str
    share: float  #: share of all arrivals
    median_s: float  #: median slot time in seconds
    sigma: float = 0.8  #: sigma of the log-normal slot times
    on_demand: float = 0.0  #: share of on-demand jobs
    priorities: Sequence[int] = (5,)
    tenants: Sequence[str | None] = (None,)


#: Jobs of a fleet that reads documents, some of them on demand.
KINDS = (
    JobKind("pdf", 0.55, 2.0, on_demand=0.2, priorities=(3, 5, 5, 8), tenants=("4f1a", "90cc", "b7e2")),
    JobKind("xls", 0.35, 0.8, on_demand=0.1, priorities=(5, 5, 8), tenants=("4f1a", "90cc", "b7e2")),
    JobKind("ocr", 0.10, 9.0, sigma=1.0, priorities=(3, 5), tenants=("4f1a", "b7e2")),
)
#: The default workers for these jobs.
WORKERS = (
    TracedWorker("w1@h", ("pdf",), 6),
    TracedWorker("w2@h", ("pdf", "xls"), 4),
    TracedWorker("w3@h", ("ocr", "pdf", "xls"), 4),
)


def make_unscheduled(count: int, *, load: float = 0.95, seed: int = 1) -> Trace:
    """Return a trace whose jobs start on arrival, regardless of the slots: input for an engine.

    *load*: average fraction of the slots that the jobs would keep busy.
    """
    rng = random.Random(seed)
    work_s = sum(kind.share * kind.median_s * math.exp(kind.sigma**2 / 2) for kind in KINDS)
    gap_s = work_s / (load * sum(worker.slots for worker in WORKERS))
    period_s = count * gap_s / 3
    jobs, now_s = [], 0.0
    for _ in range(count):
        swing = 1 + 0.5 * math.sin(2 * math.pi * now_s / period_s)
        now_s += rng.expovariate(swing / gap_s)
        jobs.append(_job(rng, round(now_s * SECOND_US)))
    return Trace(max(job.ended_us or 0 for job in jobs), WORKERS, tuple(jobs))


def _job(rng: random.Random, now_us: int) -> TracedJob:
    (kind,) = rng.choices(KINDS, [kind.share for kind in KINDS])
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


def make_trace(count: int, *, load: float = 0.95, seed: int = 1) -> Trace:
    """Return a trace of *count* jobs, scheduled by the fast engine: a replay reproduces all its claims."""
    unscheduled = make_unscheduled(count, load=load, seed=seed)
    return with_claims(unscheduled, fast_engine.schedule_fast(scenario_of(unscheduled)))


def with_claims(trace: Trace, schedule: Schedule) -> Trace:
    """Return *trace* with the claims of *schedule*. Each job starts at its claim and ends with outcome DONE."""
    jobs = list(trace.jobs)
    for fence, run in enumerate(schedule.runs, 1):
        times = {"claimed_us": run.claimed_us, "started_us": run.claimed_us, "ended_us": run.ended_us}
        jobs[run.number] = replace(jobs[run.number], fence=fence, outcome=DONE, worker=run.worker, **times)
    return replace(trace, jobs=tuple(jobs), length_us=max((job.ended_us or 0 for job in jobs), default=0))


if __name__ == "__main__":
    path, *jobs = sys.argv[1:]
    write_trace(make_trace(int(jobs[0]) if jobs else 4_000), Path(path))
