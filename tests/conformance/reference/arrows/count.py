"""count: a worker hands over what it added up of its jobs: waits, times in a slot and ends, for observers alone."""

from collections.abc import Iterable

from celery_affinity.rules.protocol import AVERAGED_OVER
from celery_affinity.server.replies import TypeSums

from ..model import Cohort


def count(cohort: Cohort, worker_id: str, number: int, sums: Iterable[TypeSums]) -> bool:
    """Add *sums*. Return whether the worker is known. A *number* that was counted before changes nothing."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return False
    if number <= worker.counted:
        return True
    worker.counted = number
    for each in sums:
        cohort.figures[each.type].update(each.grown)
        if each.pace:
            worker.took[each.type] = each.pace
        if each.ended and cohort.capacity(each.type):  # else the average went with the last worker of the type
            _average(cohort, each.type, each.ended, each.took_us)
    return True


def _average(cohort: Cohort, type_: str, number: int, sum_us: int) -> None:
    """Have the moving average of a type's times in a slot go by *number* more, whose sum is *sum_us*.

    average + (sum - number * average) / max(number, `AVERAGED_OVER`), rounded down; the first average is sum / number.
    """
    before_us = cohort.durations_us.get(type_)
    if before_us is None:
        cohort.durations_us[type_] = sum_us // number
    else:
        cohort.durations_us[type_] = before_us + (sum_us - number * before_us) // max(number, AVERAGED_OVER)
