"""What holds back a whole type: a pause, or a limit of the jobs of the type that run together."""

import re

from celery_affinity.rules.keys import encode

from ..model import Cohort, Job
from . import reserves


def open(cohort: Cohort, type_: str) -> bool:  # noqa: A001  # its twin's name
    """Return whether jobs of *type_* may start, as far as rules of the type are concerned."""
    if "*" in cohort.pauses or f"type:{encode(type_)}" in cohort.pauses or type_ in cohort.counting:
        return False
    limit = limit_of(cohort, type_)
    return limit is None or len(cohort.limited.get(type_, ())) < limit


def limit_of(cohort: Cohort, type_: str) -> int | None:
    """Return how many jobs of *type_* may run together; None: any number."""
    return limits_in(cohort.settings.values.get("limits", "")).get(encode(type_))


def hold(cohort: Cohort, job: Job) -> None:
    """*job* was claimed: a limit of its type, or a reserve for its class, counts it."""
    if limit_of(cohort, job.type) is not None or reserves.covers(cohort, job):
        cohort.limited.setdefault(job.type, {})[job.id] = reserves.lane_number(job)
        job.is_limited = job.has_more = True


def free(cohort: Cohort, job: Job) -> None:
    """*job* was claimed, and is no more."""
    if not job.is_limited:
        return
    was_open = open(cohort, job.type)
    job.is_limited = False
    cohort.limited.get(job.type, {}).pop(job.id, None)
    gain(cohort, job.type, was_open=was_open)
    if reserves.concerning(cohort, job.type):
        cohort.gained.add(job.type)


def gain(cohort: Cohort, type_: str, *, was_open: bool) -> None:
    """Have the next `fill` look at *type_*, if the type is open and was not."""
    if not was_open and open(cohort, type_):
        cohort.gained.add(type_)


def limits_in(text: str) -> dict[str, int]:
    """Return type, encoded -> its limit, from the setting ``limits``."""
    return {type_: int(limit) for type_, limit in re.findall(r"(?:^| )type%3A(\S+)=([0-9]+)", text)}
