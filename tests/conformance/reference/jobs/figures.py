"""What observers are told of the jobs of a type: counts, and times by powers of two."""

from celery_affinity.rules import figures

from ..model import Cohort


def count(cohort: Cohort, type_: str, kind: str, time_us: int) -> None:
    """Count a time of a job of a type."""
    its = cohort.figures[type_]
    field = figures.field(kind, figures.bucket_of(time_us))
    its[field] += 1
    counts_as_us = figures.counts_as(time_us, its[field])
    if counts_as_us is not None:
        its[figures.sum_field(kind)] += counts_as_us
