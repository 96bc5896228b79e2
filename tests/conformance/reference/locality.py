"""Hints: a worker holds the hints of its last successful jobs, and a job runs on a worker that holds its hint."""

import math

from celery_affinity.policy.score import MICRO
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import MAX_HINTS
from celery_affinity.schema.rules_codec import HINTED, decode_rules
from celery_affinity.settings.wire import complete_settings

from .model import Cohort, Job, Worker


def hint_of(job: Job) -> str:
    """Return the hint of *job*, or ""."""
    return decode_rules(job.rules).hint if HINTED in job_record.suffix_of(job.id) else ""


def bonus(cohort: Cohort) -> int:
    """Return the bonus in micro-points for a job whose hint the worker holds; 0 while tenants take turns by shares."""
    settings = complete_settings(cohort.settings.values)
    return 0 if settings["tenant_turns"] == "share" else math.floor(float(settings["locality_bonus"]) * MICRO)


def holders(cohort: Cohort, job: Job) -> set[str]:
    """Return the ids of the workers that hold the hint of *job*; without a hint, none."""
    return {each.id for each in cohort.workers.values() if hint_of(job) in each.hints}


def has_succeeded(cohort: Cohort, worker: Worker, job: Job, now_us: int) -> None:
    """Let *worker*, which ended *job* successfully, hold its hint, and drop the oldest one beyond the limit."""
    hint = hint_of(job)
    if hint:
        cohort.counters["locality_hits" if hint in worker.hints else "locality_misses"] += 1
        worker.holds_since.setdefault(hint, now_us)
        worker.hints[hint] = now_us
        if len(worker.hints) > MAX_HINTS:
            oldest = min(worker.hints, key=lambda each: (worker.hints[each], each))
            del worker.hints[oldest], worker.holds_since[oldest]
